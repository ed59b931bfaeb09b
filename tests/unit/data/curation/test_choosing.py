"""Which prompts are kept: ranges, intervals, domains; and the file that says so."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import rlax
from data_sets import listed, tables

from rlax_plugin.api import PromptTable
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Prompt, SamplingParams
from rlax_plugin.data.curation.choosing import Rule, choose, parsed_range
from rlax_plugin.data.curation.pass_rate_files import About, measured, write_table
from rlax_plugin.data.prompts.ids import put_table
from rlax_plugin.data.prompts.kept import kept_ids, only_kept

HOSTILE = "</script><script>alert(1)</script>\x1b[2J\u202e<img src=x onerror=alert(2)>"
OF_EIGHT = (0, 1, 2, 4, 6, 7, 8)


def candidates(passed: Any, n: Any = 8, names: Any = None) -> pa.Table:
    passed_n = np.array(passed, float)
    ids = names or [f"p{i}" for i in range(len(passed_n))]
    domain = pa.nulls(len(ids), pa.string())
    failed_n = np.broadcast_to(n, passed_n.shape) - passed_n
    return pa.table({"id": ids, "domain": domain, "passed": passed_n, "failed": failed_n})


def chosen(found: pa.Table) -> tuple[list[str], dict[str, str]]:
    rows = found.to_pylist()
    kept = [row["id"] for row in rows if row["kept"]]
    return kept, {row["id"]: row["reason"] for row in rows if row["reason"]}


def test_the_measured_share_must_lie_in_the_range_ends_included() -> None:
    kept, why = chosen(choose(candidates(OF_EIGHT), Rule(0.25, 0.75)))
    assert kept == ["p2", "p3", "p4"]
    assert why == {"p0": "too hard", "p1": "too hard", "p5": "too easy", "p6": "too easy"}
    # 0.2 is in 0.2..0.8 although 0.2 is no binary number.
    kept, _ = chosen(choose(candidates([6, 24], 30), Rule(0.2, 0.8)))
    assert kept == ["p0", "p1"]


def test_the_posterior_keeps_what_few_samples_do_not_rule_out() -> None:
    # 0 of 2: Beta(1, 3), whose 95 % quantile is 1 - 0.05 ** (1 / 3) = 0.632; 0 of 50 is 0.057.
    found = choose(candidates([0, 0], [2, 50]), Rule(0.2, 0.8, "posterior"))
    kept, why = chosen(found)
    assert kept == ["p0"] and why == {"p1": "too hard"}
    row = found.to_pylist()[0]
    assert row["high"] == pytest.approx(1 - 0.05 ** (1 / 3)) and row["mean"] == 0.25
    assert row["low"] == pytest.approx(1 - 0.95 ** (1 / 3))


def test_unmeasured_prompts_are_kept_unless_they_are_dropped() -> None:
    some = candidates([4, 0], [8, 0])
    assert chosen(choose(some, Rule(0.2, 0.8))) == (["p0", "p1"], {"p1": "unmeasured"})
    assert chosen(choose(some, Rule(0.2, 0.8, drop_unmeasured=True)))[0] == ["p0"]


def test_contaminated_prompts_are_dropped_whatever_their_rate() -> None:
    found = choose(candidates([4, 4, 0]), Rule(0.2, 0.8), pa.array(["p0", "p2", "strange"]))
    assert chosen(found)[0] == ["p1"]
    assert chosen(found)[1] == dict.fromkeys(("p0", "p2"), "in an evaluation set")


@pytest.mark.parametrize("text", ["0.2", "a..b", "-1..1", "0..nan", "0.2...0.8"])
def test_a_range_that_is_none_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--keep.*such as 0\.2\.\.0\.8"):
        parsed_range(text)


def test_a_range_the_wrong_way_round_is_rejected_with_the_right_one() -> None:
    expected = r"--keep = '0\.8\.\.0\.2': must have the lower .* such as 0\.2\.\.0\.8"
    with pytest.raises(ConfigError, match=expected):
        parsed_range("0.8..0.2")


def test_only_kept_prompts_are_used_in_their_order(tmp_path: Path) -> None:
    path, notes = str(tmp_path / "kept.parquet"), []
    put_table(path, choose(candidates([4, 0, 5]), Rule(0.2, 0.8)))
    prompts = [Prompt(name, np.zeros(1, np.int32), "", "") for name in ("p2", "p1", "x", "p2")]
    found = only_kept(prompts, path, notes.append)
    assert [one.id for one in found] == ["p2", "p2"]
    said = "rlax.curation.only keeps 2 of 4 prompts; 1 that it keeps are not among them"
    assert notes == [said]
    for strange, reason in ((prompts[1:3], "has none of the 2 prompts"), ([], "has none of the 0")):
        with pytest.raises(ConfigError, match=f"rlax.curation.only = .*: {reason}"):
            only_kept(strange, path, notes.append)


def test_a_table_is_read_as_the_part_that_is_kept(tmp_path: Path) -> None:
    table = tables(listed(*({"question": f"{n}?", "answer": n} for n in range(9))))["train"]
    path = str(tmp_path / "kept.parquet")
    names = [table.id_at(index) for index in (7, 3, 2, 5)]
    put_table(path, choose(candidates([4, 0, 5, 8], names=names), Rule(0.2, 0.8)))
    some = only_kept(table, path, lambda text: None)
    assert isinstance(some, PromptTable)
    assert [prompt.text for prompt in some] == ["2?", "7?"]


def test_a_file_that_is_none_of_these_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "kept.parquet"
    with pytest.raises(ConfigError, match=r"rlax\.curation\.only = .*: does not exist"):
        only_kept([], str(path), print)
    pq.write_table(pa.table({"id": ["a"]}), path)
    with pytest.raises(ConfigError, match=r"is not a file of rlax curate: it has no column kept"):
        only_kept([], str(path), print)
    pq.write_table(pa.table({"id": ["a"], "kept": [1]}), path)
    with pytest.raises(ConfigError, match="its column kept is not bool without a null"):
        only_kept([], str(path), print)
    path.write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(ConfigError, match="is not a file of rlax curate"):
        only_kept([], str(path), print)
    put_table(str(path), choose(candidates([0, 8]), Rule(0.2, 0.8)))
    with pytest.raises(ConfigError, match="keeps no prompt: curate again with a wider --keep"):
        only_kept([], str(path), print)


# The command.

ABOUT = About("runs/a", "0a1b2c3d", 0, SamplingParams(), 0.5)


@pytest.fixture
def rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = {
        "id": ["a", "b", "c", "d"],
        "domain": ["sums", "sums", HOSTILE, HOSTILE],
        "passed": [4, 0, 8, 2],
        "failed": [4, 8, 0, 6],
    }
    write_table("rates.parquet", measured(rows, ABOUT))
    return "rates.parquet"


def test_the_command_writes_a_file_and_prints_hostile_text_harmlessly(rates: str) -> None:
    done = rlax("curate", rates, "--keep", "0.2..0.8", "--out", "sub/kept.parquet")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output and "\u202e" not in done.output
    assert kept_ids("sub/kept.parquet").to_pylist() == ["a", "d"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.parquet"], "TABLE = 'none.parquet': does not exist"),
        (
            ["rates.parquet", "--keep", "0.9..0.95"],
            "keeps none of the 4 prompts (3 too hard, 1 too",
        ),
        (["rates.parquet", "--bound", "median"], "'median' is not one of 'mean'"),
        (["rates.parquet", "--without", "none"], "--without = 'none': does not exist"),
        (
            ["rates.parquet", "--without", "rates.parquet"],
            "--without = 'rates.parquet': cannot be used: rates.parquet is not a file of rlax "
            "prompts --contamination: it has no column set",
        ),
    ],
)
def test_what_cannot_be_curated_is_rejected(rates: str, arguments: list[str], message: str) -> None:
    done = rlax("curate", *arguments, "--out", "kept.parquet")
    assert done.exit_code == 2 and message in " ".join(done.output.split())
    assert not Path("kept.parquet").exists()


def test_no_file_is_written_over(rates: str) -> None:
    before = Path(rates).read_bytes()
    Path("run.yml").write_bytes(b"mine")
    for out, message in ((rates, "exists already: remove it"), ("run.yml", "must end in .parquet")):
        done = rlax("curate", rates, "--out", out)
        assert done.exit_code == 2 and f"--out = {out!r}: {message}" in " ".join(
            done.output.split()
        )
    assert (Path(rates).read_bytes(), Path("run.yml").read_bytes()) == (before, b"mine")
