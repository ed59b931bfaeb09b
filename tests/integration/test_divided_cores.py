"""The launcher ``local`` divides the cores of the machine between trainer and workers."""

import os
from contextlib import suppress

import psutil
import pytest
from command_line import rlax
from runs import CONFIG, Run

HERE = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(HERE) < 2, reason="one core cannot be divided")
ENDLESS = ("steps=100000", "rlax.evaluation.problems=0", "rlax.curation.filters=[]")


def cores(process: psutil.Process) -> set[int]:
    """The cores that the threads of a process may use."""
    found: set[int] = set()
    for thread in process.threads():
        with suppress(ProcessLookupError):  # it has ended since
            found |= os.sched_getaffinity(thread.id)
    return found


def test_the_trainer_has_cores_of_its_own_and_a_restarted_worker_keeps_to_the_others(tmp_path):
    run = Run(tmp_path, *ENDLESS, "rlax.launcher.trainer_threads=1")
    run.until(lambda: len(run.steps()) > 2, "steps")
    assert cores(psutil.Process(run.process.pid)) == {HERE[0]}
    (first,) = run.workers()
    assert cores(first) == set(HERE[1:])
    first.kill()
    run.until(lambda: {one.pid for one in run.workers()} - {first.pid}, "another worker")
    steps = len(run.steps())
    run.until(lambda: len(run.steps()) > steps + 2, "further steps")
    (second,) = run.workers()
    assert cores(second) == set(HERE[1:])


def test_a_trainer_that_would_take_all_cores_is_an_error_before_anything_starts(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = rlax("train", CONFIG, f"rlax.launcher.trainer_threads={len(HERE)}")
    assert done.exit_code == 2
    assert f"at most {len(HERE) - 1}, so that one of the {len(HERE)} cores is left" in done.stderr
    assert not (tmp_path / "runs").exists()
