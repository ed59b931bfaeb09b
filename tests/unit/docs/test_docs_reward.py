"""The commands of docs/your_reward.md, in order, print what the page says."""

import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import rlax
from documents import fences, read, sections
from installs import on_path
from runs import lines
from test_docs_plugins import shell

PAGE = sections(read("your_reward.md"), 2)
TRY, OWN = PAGE["Try it: rlax score"], PAGE["Write your own"]
FUNCTION = PAGE["A function is a reward"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files of the page."""
    directory = tmp_path_factory.mktemp("page")
    (config,), (completions,) = fences(TRY, "yaml"), fences(TRY, "json")
    (code,), (functions,) = fences(OWN, "python"), fences(FUNCTION, "python")
    for name, text in {
        "try.yml": config,
        "completions.jsonl": completions,
        "my_reward.py": code,
        "rewards.py": functions,
    }.items():
        (directory / name).write_text(text)
    return directory


def told(folder: Path, line: str, status: int = 0) -> str:
    """What a command of the page prints, without trailing spaces."""
    command, *words = shlex.split(line)
    assert command == "rlax"
    with pytest.MonkeyPatch.context() as patch, on_path(folder):
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setattr(tempfile, "tempdir", str(folder))  # the log of a reward that failed is kept
        done = rlax(*words)
    assert done.exit_code == status, done.output
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def test_the_table_is_that_of_the_page(folder: Path) -> None:
    found = told(folder, fences(TRY, "sh")[0], status=1)
    (table,) = fences(TRY, "text")
    shown = found.partition("\n\n")[0].replace(" (line \n", "\n")
    # The console folds the message; the page leaves out the line of the reward's code.
    assert [line.split() for line in shown.splitlines()[:4]] == [
        line.split() for line in table.splitlines()[:4]
    ]
    message = "ValueError: prompt line 4: reference 'a million' is not a number"
    assert message in " ".join(shown.split()) and message in " ".join(table.split())
    assert shown.splitlines()[-2:] == table.splitlines()[-2:]
    assert "a reward failed on prompt line 4" in found


def test_other_rewards_by_arguments(folder: Path) -> None:
    found = told(folder, fences(TRY, "sh")[1])
    assert found.splitlines()[-1].split()[:3] == ["mean", "0", "0"]


def test_the_reward_of_the_page(folder: Path) -> None:
    settings, line = fences(OWN, "sh")[0].splitlines()
    assert settings == "export PYTHONPATH=."
    (folder / "polite.jsonl").write_text('{"completion": "Please."}\n{"completion": "Now."}\n')
    found = told(folder, line.replace("completions.jsonl", "polite.jsonl"))
    rows = [row.split() for row in found.splitlines()]
    assert rows[1][:4] == ["1", "1", "2", "Please."] and rows[2][:4] == ["2", "0", "0", "Now."]
    assert "my_reward" in told(folder, "rlax check-plugin my_reward")


def test_the_functions_of_the_page(folder: Path) -> None:
    (line,), (entries,) = fences(FUNCTION, "sh"), fences(FUNCTION, "yaml")
    named = yaml.safe_load(entries)["rlax"]["rewards"]
    assert yaml.safe_load(shlex.split(line)[-1].partition("=")[2]) == named
    rows = [row.split() for row in told(folder, line).splitlines()]
    # Of 20, 12, 22 and 26 characters; brief gives 20 over that number, and at most 1.
    assert rows[0][:6] == ["line", "correct", "0.1", "*", "brief", "reward"]
    assert [row[:4] for row in rows[1:5]] == [
        ["1", "1", "1", "1.1"],
        ["2", "0", "1", "0.1"],
        ["3", "0", "0.909091", "0.0909091"],
        ["4", "0", "0.769231", "0.0769231"],
    ]


def test_the_table_has_every_parameter() -> None:
    from rlax_plugin.reward.functions import signatures

    forms = signatures.SAMPLE, signatures.GROUP, signatures.FILTER
    rows = [row for row in FUNCTION.splitlines() if row.startswith("| ")][-3:]
    for names, row in zip(forms, rows, strict=True):
        assert [name for name in names if f"`{name}`" not in row] == []


def test_the_filter_of_curation() -> None:
    from rlax_plugin.reward.functions.calling import FunctionFilter
    from rlax_plugin.reward.functions.signatures import signature_of
    from rlax_plugin.testing import make_group

    (code,) = fences(sections(read("curation.md"), 2)["Filters"], "python")
    made: dict[str, Any] = {}
    exec(code, made)
    short = FunctionFilter(
        made["short"], signature_of(made["short"], "short", "filter", "filters.py"), "short"
    )
    assert short.reject(make_group((1.0, 0.0))) is None
    assert short.reject(make_group((1.0, 1.0))) == "short"
    long = make_group((1.0, 0.0), lengths=(3, 1001))
    assert short.reject(long) == "a sample has more than 1000 tokens"


def test_the_page_names_every_reward_of_the_plug_in() -> None:
    import rlax_rewards

    (table,) = [text for name, text in PAGE.items() if name == "Rewards that exist"]
    assert all(f"| `{name}` |" in table for name in rlax_rewards.rlax_register_reward())


@pytest.mark.long
def test_the_config_that_scores_trains_as_well(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "try.yml", tmp_path)
    shell(tmp_path, "rlax train try.yml steps=2")
    steps = [line["step"] for line in lines(tmp_path / "runs/try/metrics.jsonl")]
    assert steps == [1, 2]
