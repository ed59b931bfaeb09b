"""Tables of pass rates: the parts of an unfinished one, its summary, and wrong options."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from command_line import rlax
from runs import CONFIG

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.types import SamplingParams
from rlax_plugin.data.curation.pass_rate_files import About, measured
from rlax_plugin.run.evaluation.problems import Answered
from rlax_plugin.tools.commands.evaluate.command import Asked, summaries
from rlax_plugin.tools.commands.evaluate.parts import Counts, Parts

ABOUT = About("run", "0a1b2c3d", 0, SamplingParams(), 0.5)
WHAT = {"weights": "0a1b2c3d", "temperature": 1.0, "stop_ids": (1,)}


def parts(directory: Path, what: dict[str, object] | None = None) -> Parts:
    made = Parts(str(directory / "rates.parquet"), 5, ABOUT)
    try:
        made.begin(WHAT if what is None else what)
    except BaseException:
        made.close()
        raise
    return made


def test_samples_are_counted_and_failed_rewards_are_not() -> None:
    answered = Answered(
        rewards_n=np.array([1.0, 0.5, 0.49, np.nan]),
        lengths_n=np.array([3, 4, 5, 6]),
        truncated_n=np.array([False, True, False, True]),
        votes=[None] * 4,
        failure="it broke",
    )
    counts = Counts.of(2, answered, 0.5)
    assert counts == Counts(index=2, passed=2, failed=1, truncated=2, tokens=18, errored=1)


def test_a_later_process_goes_on_where_the_first_one_was(tmp_path: Path) -> None:
    first = parts(tmp_path)
    for index in (3, 0):
        asyncio.run(first.add(Counts(index, 1, 2, 0, 30 + index, 0)))
    assert not first.done_n.any()  # not before it is written
    first.flush()
    asyncio.run(first.add(Counts(4, 1, 2, 0, 5, 0)))  # lost with its process
    with pytest.raises(ConfigError, match="is being measured by another process"):
        parts(tmp_path)
    first.close()
    second = parts(tmp_path)
    assert second.done_n.tolist() == [True, False, False, True, False]
    assert second.counts[3].tolist() == [30, 0, 0, 33, 0]
    asyncio.run(second.add(Counts(1, 8, 0, 1, 9, 0)))
    second.flush()
    second.flush()  # nothing new
    names = sorted(path.name for path in Path(second.place).glob("*.parquet"))
    assert names == ["00000001.parquet", "00000002.parquet"]
    second.remove()
    assert not Path(second.place).exists()


def test_parts_of_something_else_are_rejected_by_name(tmp_path: Path) -> None:
    parts(tmp_path).close()
    with pytest.raises(ConfigError, match=r"temperature 1\.0 then, 0\.7 now\): give another --out"):
        parts(tmp_path, WHAT | {"temperature": 0.7})
    parts(tmp_path).close()


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    one = parts(tmp_path)
    asyncio.run(one.add(Counts(0, 1, 2, 0, 3, 0)))
    one.flush()
    one.close()
    strange = Parts(str(tmp_path / "rates.parquet"), 1, ABOUT)
    asyncio.run(strange.add(Counts(0, 1, 0, 0, 1, 0)))
    (Path(one.place) / "00000002.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RlaxError, match=r"00000002\.parquet is not a table of pass rates"):
        parts(tmp_path)


def test_the_summary_is_of_all_and_of_each_domain() -> None:
    rows = {
        "id": list("abcdef"),
        "domain": ["x", "x", "x", "x", "y", "y"],
        "passed": [0, 4, 1, 3.5, 0, 0],
        "failed": [4, 0, 3, 0.5, 4, 0],
        "truncated": [0, 0, 0, 4, 0, 4],
        "tokens": [40, 40, 40, 40, 40, 40],
        "errored": [0, 0, 0, 0, 0, 4],
    }
    every, x, y = summaries(measured(rows, ABOUT))
    assert (every["domain"], x["domain"], y["domain"]) == ("all", "x", "y")
    assert every["prompts"] == 6 and every["unmeasured"] == y["unmeasured"] == 1
    assert x["never_passed"] == x["always_passed"] == 1 and x["between"] == 2
    assert x["pass_rate"] == pytest.approx((0 + 1 + 1 / 4 + 7 / 8) / 4)
    for one in (every, x, y):  # 7 / 8 is in between, too
        parts = ("never_passed", "always_passed", "between", "unmeasured")
        assert sum(one[part] for part in parts) == one["prompts"]
    assert every["tokens"] == 10 and every["truncated"] == pytest.approx(1 / 3)
    assert y["errored"] == 0.5 and x["errored"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/nothing"], "RUN = 'runs/nothing': must be a config (.yml), a run directory"),
        ([CONFIG, "--step", "3"], "--step = 3: is of a run: give a run in place of a config"),
        ([CONFIG, "--k", "2"], "--k = (2,): has no effect on a table of pass rates (--out = 'r.p"),
        ([CONFIG, "--set", "hard"], "has no effect on a table of pass rates"),
        ([CONFIG, "--problems", "9"], "--problems = 9: has no effect on a table of pass rates"),
        ([CONFIG, "--out", "mine.parquet"], "--out = 'mine.parquet': exists already"),
        ([CONFIG, "--split", "tset"], "--split = 'tset': no such split; did you mean 'test'?"),
    ],
)
def test_what_cannot_be_measured_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.parquet").write_bytes(b"mine")
    done = rlax("eval", "--out", "r.parquet", *arguments)
    assert done.exit_code == 2 and message in " ".join(done.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]
    assert Path("mine.parquet").read_bytes() == b"mine"


def test_the_result_of_a_config_needs_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = rlax("eval", CONFIG, "--split", "train")
    assert done.exit_code == 2 and "such as eval.json or rates.parquet" in done.stderr


def test_fewer_samples_leave_out_each_k_above_them_that_was_not_asked_for() -> None:
    def k_of(**options: object) -> tuple[int, ...]:
        asked = Asked(CONFIG, **options)  # pyright: ignore[reportArgumentType]
        return asked.origin().config.section.evaluation.k

    config = ("rlax.evaluation.k=[1,2]",)
    assert (k_of(), k_of(samples=1), k_of(samples=4)) == ((1, 2), (1,), (1, 2))
    assert k_of(samples=64, overrides=("rlax.evaluation.k=[64]",)) == (64,)
    for wrong in ({"k": (2,)}, {"overrides": config}):
        with pytest.raises(ConfigError, match=r"^rlax.evaluation.k = 2: must be at most"):
            k_of(samples=1, **wrong)
