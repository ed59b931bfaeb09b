"""What is printed to go on with can be pasted, also where the environment is not activated."""

import io
import shlex
import sysconfig
from pathlib import Path

import pytest

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.command_lines import pasteable
from rlax_plugin.base.text.terminal import console
from rlax_plugin.run.start.results import print_results


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with an environment that is not activated; the working directory."""
    folder = tmp_path / "a clone"
    scripts = folder / ".venv/bin"
    script(scripts / "rlax")
    script(scripts / "tensorboard")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: {"scripts": str(scripts)}[name])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(folder)
    return folder


def script(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def test_a_program_that_is_not_on_path_is_named_by_its_path(clone: Path) -> None:
    for program in ("rlax", "tensorboard"):
        line = pasteable(program, "report", "runs/a b")  # quoted: the folder has a space, too
        assert line == f"'{clone}/.venv/bin/{program}' report 'runs/a b'"


def test_a_program_of_the_activated_environment_needs_no_path(clone: Path, monkeypatch) -> None:
    (clone / "link").symlink_to(clone / ".venv")
    for scripts in (clone / ".venv/bin", clone / "link/bin"):
        monkeypatch.setenv("PATH", f"{scripts}:/usr/bin:/bin")
        assert pasteable("rlax", "audit", "runs/x") == "rlax audit runs/x"


def test_a_program_of_another_environment_is_not_meant(clone: Path, monkeypatch) -> None:
    (clone / "other").mkdir()
    (clone / "other/rlax").symlink_to(clone / ".venv/bin/rlax")  # as interpreters are
    monkeypatch.setenv("PATH", f"{clone / 'other'}:/usr/bin")
    assert pasteable("rlax", "audit") == f"'{clone}/.venv/bin/rlax' audit"


@pytest.mark.parametrize("watched", [True, False])
def test_a_command_is_one_line_however_narrow_the_terminal(watched: bool, monkeypatch) -> None:
    """What is copied from a terminal has its line breaks, and a shell ends commands there."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: watched)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    said = pasteable("rlax", "serve", "--controller", "127.0.0.1:40349", "--token-file", "a" * 90)
    console(out).print(f"a further worker joins with:  {said}")
    assert out.getvalue() == f"a further worker joins with:  {said}\n"


def test_every_command_at_the_end_of_a_run_can_be_pasted(clone: Path, monkeypatch) -> None:
    (clone / "runs/demo/tensorboard").mkdir(parents=True)
    out = io.StringIO()
    print_results(console(out), RunFiles("runs/demo"), ["c.yml", "run_name=a b", "steps=9"], 4, 1)
    lines = dict(line.split(":", 1) for line in out.getvalue().splitlines() if ":" in line)
    commands = {what: shlex.split(line) for what, line in lines.items()}
    rlax, board = f"{clone}/.venv/bin/rlax", f"{clone}/.venv/bin/tensorboard"
    assert commands == {
        "continue training": [rlax, "train", "c.yml", "run_name=a b", "steps=8"],
        "write a report": [rlax, "report", "runs/demo"],
        "check the records": [rlax, "audit", "runs/demo"],
        "look at the curves": [board, "--logdir", "runs/demo"],
    }
