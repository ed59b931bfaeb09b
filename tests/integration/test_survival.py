"""Two trainer processes on one run, and one whose directory is taken from it while it trains.

A lease is of a process: only real ones can be killed, frozen and continued.
"""

import os
import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from runs import DEADLINE_S, HELPERS, Run, alive, plugins
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

SLOW = "rlax.trainer.train_s=0.1"


def assert_whole(run: Run, steps: int) -> None:
    assert [step["step"] for step in run.steps()] == list(range(1, steps + 1))
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation


def names(directory: Path) -> set[str]:
    return {one.name for one in directory.glob("*")}


@pytest.mark.slow
@pytest.mark.ci
def test_a_second_trainer_is_refused_and_after_a_kill_nothing_is_waited_for(tmp_path):
    first = Run(tmp_path, SLOW, "steps=1000")
    first.until(lambda: len(first.steps()) >= 6, "six steps")
    for state_dir in ("", f"rlax.state_dir={tmp_path / 'second'}"):
        second = Run(tmp_path, SLOW, "steps=1000", *filter(None, [state_dir]))
        status, out = second.end()
        assert status == 1 and "Traceback" not in out, out  # 2 would be a wrong config
        assert f"already used by process {first.process.pid} on {os.uname().nodename}" in out
        assert "continue with" not in out
    family = psutil.Process(first.process.pid).children(recursive=True)
    seen = len(first.steps())
    first.process.kill()
    first.process.communicate()
    wait_until(lambda: not alive(family), "the end of its processes", limit_s=DEADLINE_S)
    again = Run(tmp_path, SLOW, f"steps={seen + 6}", f"rlax.state_dir={tmp_path / 'third'}")
    status, out = again.end()
    assert status == 0 and "is held by" not in out, out
    assert_whole(again, seen + 6)


@pytest.mark.slow
@pytest.mark.ci
def test_a_trainer_that_was_frozen_ends_if_another_has_taken_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    settings = (SLOW, "steps=60", plugins("brief_lease"))
    first = Run(tmp_path, *settings)
    first.until(lambda: len(first.steps()) >= 6, "six steps")
    family = psutil.Process(first.process.pid).children(recursive=True)
    first.process.send_signal(signal.SIGSTOP)
    second = Run(tmp_path, *settings, f"rlax.state_dir={tmp_path / 'second'}")
    begun = tmp_path / "second/processes"
    second.until(lambda: list(begun.glob("*.json")), "that it has taken the run over")
    frozen = len(second.steps())
    second.until(lambda: len(second.steps()) > frozen, "a further step")
    first.process.send_signal(signal.SIGCONT)
    status, out = first.end()
    assert status == 1 and "Traceback" not in out, out
    assert f"was taken over by process {second.process.pid} on " in out
    assert "continue with" not in out
    wait_until(lambda: not alive(family), "the end of its processes", limit_s=DEADLINE_S)
    status, out = second.end()
    assert status == 0, out
    assert f"the run is held by process {first.process.pid} on " in out
    assert_whole(second, 60)


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_ends_at_once_without_its_directory(tmp_path):
    run = Run(tmp_path, SLOW, "steps=1000")
    run.until(lambda: len(run.steps()) >= 6, "six steps")
    family = psutil.Process(run.process.pid).children(recursive=True)
    moved = tmp_path / "elsewhere"
    run.process.send_signal(signal.SIGSTOP)  # so that it sees no state in between
    run.dir.rename(moved)
    run.process.send_signal(signal.SIGCONT)
    status, out = run.end()
    assert status == 2 and "Traceback" not in out, out  # a supervisor must not start a new run
    wait_until(lambda: not alive(family), "the end of its processes", limit_s=DEADLINE_S)
    # A version that was just being written may lie there, but no part of a run.
    assert not {"lease", "journal", "samples", "controller", "checkpoints"} & names(run.dir)
    assert "continue with" not in out
    (error,) = re.findall(r"^error: .*$", out, re.MULTILINE)
    assert f"testing': {run.dir} was moved to {moved} while the run trained" in error
    shutil.rmtree(run.dir, ignore_errors=True)
    moved.rename(run.dir)
    steps = len(run.steps()) + 6
    status, out = Run(tmp_path, SLOW, f"steps={steps}").end()
    assert status == 0 and "resuming after step" in out, out
    assert_whole(run, steps)
