"""The commands of docs/your_reward.md, in order, print what the page says."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from documents import fences, read, sections

PAGE = sections(read("your_reward.md"), 2)
TRY, OWN = PAGE["Try it: rlax score"], PAGE["Write your own"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files of the page."""
    directory = tmp_path_factory.mktemp("page")
    (config,), (completions,) = fences(TRY, "yaml"), fences(TRY, "json")
    (code,) = fences(OWN, "python")
    for name, text in {
        "try.yml": config,
        "completions.jsonl": completions,
        "my_reward.py": code,
    }.items():
        (directory / name).write_text(text)
    return directory


def told(folder: Path, line: str, status: int = 0) -> str:
    """What a command of the page prints, without trailing spaces."""
    words = shlex.split(line)
    assert words[0] == "rlax"
    script = (
        f"PYTHONPATH=.:$PYTHONPATH {shlex.join([sys.executable, '-m', 'rlax_plugin', *words[1:]])}"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == status, done.stderr
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


def test_the_page_names_every_reward_of_the_plug_in() -> None:
    import rlax_rewards

    (table,) = [text for name, text in PAGE.items() if name == "Rewards that exist"]
    assert all(f"| `{name}` |" in table for name in rlax_rewards.rlax_register_reward())
