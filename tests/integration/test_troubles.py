"""The table of troubles: what the doctor says of each, how soon, and what becomes of the run.

All tests share one run and its worker behind proxies, and print the table with ``-s``;
docs/reliability.md lists the findings. Each asserts the finding, and that the run goes on after
the trouble.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from troubled_run import FAKETIME, Troubled, other_clock, troubled

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit
from rlax_plugin.tools.commands.doctor.findings import Finding

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(600)]

needs_other_clock = pytest.mark.skipif(
    not FAKETIME.exists(), reason=f"libfaketime is not installed: there is no {FAKETIME}"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troubled]:
    with troubled(tmp_path_factory.mktemp("troubles")) as one:
        yield one


@contextmanager
def told(run: Troubled, part: str, how: str) -> Iterator[None]:
    """Has a part fail within the block."""
    beside = run.told / "beside"
    beside.write_text(how)
    beside.chmod(0o600)
    os.replace(beside, run.told / part)
    try:
        yield
    finally:
        (run.told / part).unlink()


def named(run: Troubled, trouble: str, *words: str) -> Finding:
    """Waits for a finding with all these words, and prints a line of the table."""
    finding, seconds = run.named(*words)
    print(f"\n| {trouble} | {finding.what} | {seconds:.1f} s |")
    return finding


def test_a_frozen_worker(run: Troubled) -> None:
    worker, began_s = run.near, time.monotonic()
    worker.suspend()
    try:
        finding = named(run, "a worker is frozen", f"local-0 (pid {worker.pid}) is stopped by a")
        assert finding.try_ == f"kill -CONT {worker.pid} continues it"
        assert "rlax.deadlines.heartbeats_lost x heartbeat_s = 3 s" in finding.ends
        run.goes_on()  # with the other worker
        run.until(lambda: time.monotonic() > began_s + 10, "a while")
        assert [one.what for one in run.found()] == [finding.what]
    finally:
        worker.resume()
    run.quiet()
    run.goes_on()


def test_heartbeats_that_are_lost(run: Troubled) -> None:
    assert run.far.calling.half_open() > 0
    finding = named(run, "heartbeats do not arrive", "worker far was lost (no heartbeat for 3 s)")
    assert "look at the network between the machines" in finding.try_
    run.goes_on()
    run.quiet()  # it has registered again, over a new connection


def test_answers_that_are_lost(run: Troubled) -> None:
    began_s = time.monotonic()
    # The trainer connects to a worker that was lost before only once it gives it a group.
    run.until(run.far.called.half_open, "a connection to the far worker")
    words = ("worker far does not have", "the connection to the worker loses what is sent")
    finding = named(run, "answers of a worker do not arrive", *words)
    assert "network from the trainer to that worker" in finding.try_
    run.goes_on()  # once the keepalive of the connection has broken it
    print(f"\nthe run has gone on after {time.monotonic() - began_s:.1f} s")
    run.quiet()


def test_a_frozen_trainer(run: Troubled) -> None:
    trainer, began_s = run.run.process, time.monotonic()
    trainer.send_signal(signal.SIGSTOP)
    try:
        finding = named(run, "the trainer is frozen", f"trainer (pid {trainer.pid}) is stopped by")
        assert finding.try_ == f"kill -CONT {trainer.pid} continues it"
        while time.monotonic() < began_s + 8:
            time.sleep(0.5)
        assert [one.what for one in run.found()] == [finding.what]
    finally:
        trainer.send_signal(signal.SIGCONT)
    run.goes_on()
    run.quiet()


def test_an_engine_that_blocks(run: Troubled) -> None:
    with told(run, "engine", "local-0"):
        finding = named(run, "an engine blocks", "makes no progress on worker local-0 since")
        assert "rlax.deadlines.group_s = 60 s without progress" in finding.ends
        assert finding.process is not None and finding.process.mark.pid == run.near.pid
    run.goes_on()
    run.quiet()


def test_an_environment_that_blocks(run: Troubled) -> None:
    with told(run, "environment", ""):
        finding = named(run, "an environment blocks", "an episode of prompt ", "so far, in process")
        assert finding.ends.startswith("rlax.deadlines.episode_s = 60 s")
        assert finding.process is not None and finding.process.mark.role == "rewards"
    run.goes_on()
    run.quiet()


def test_a_publication_that_hangs(run: Troubled) -> None:
    with told(run, "store", "writes-hang"):
        finding = named(run, "a publication hangs", "publishing version ", "; a step usually takes")
        assert finding.ends == "rlax.deadlines.weights_s = 20 s ends this wait"
        assert finding.try_ == "the store of weights is slow or away: look at its disk or network"
    run.goes_on()
    run.quiet()


def test_weights_that_cannot_be_read_for_a_while(run: Troubled) -> None:
    with told(run, "store", "reads-hang"):
        finding = named(run, "reading weights hangs", "has been loading weights for")
        assert finding.ends.startswith("rlax.deadlines.weights_s = 20 s")
    run.goes_on()
    run.quiet()


def test_a_poor_store(run: Troubled) -> None:
    with told(run, "store", "slow faulty"):
        began_s = time.monotonic()
        run.until(lambda: run.said("weights were not written, trying again"), "a failed attempt")
        print(f"\nthe first attempt to write failed after {time.monotonic() - began_s:.1f} s")
        words = ("weights could not be written", "in the last minute: writing version", "Errno 5")
        finding = named(run, "a store fails now and then", *words)
        assert finding.ends.startswith("rlax.deadlines.weights_s = 20 s for one version")
        run.goes_on(10)
    run.goes_on()


def test_a_publication_that_hangs_for_too_long(run: Troubled) -> None:
    with told(run, "store", "writes-hang"):
        error = ends_with_one_sentence(run, 1)
    assert error.startswith("error: writing version ") and "took longer than 20 s" in error
    assert "rlax.deadlines.weights_s" in error
    run.again({})
    run.until(run.has_status, "the first status of the new process")
    run.goes_on()


@needs_other_clock
def test_a_worker_whose_clock_is_behind(run: Troubled) -> None:
    command = [sys.executable, "-m", "rlax_plugin", *run.serve("late")]
    with (run.directory / "late.log").open("w") as out:
        late = subprocess.Popen(command, env=os.environ | other_clock(-90), stdout=out, stderr=out)
    try:
        run.until(lambda: "worker late serves on" in run.log_of("late"), "the worker")
        named(run, "a worker's clock is 90 s behind", "the clock of worker late is 90 s behind the")
        run.goes_on()
    finally:
        late.terminate()
        late.wait(60)
    assert "error" not in run.log_of("late").lower()


def test_a_full_disk_and_a_trainer_whose_clock_is_behind(run: Troubled) -> None:
    """The run ends, and the same command goes on, with a clock that differs if there is one."""
    if not run.small:
        pytest.skip("only root can mount a small disk")
    with full(run.disk):
        finding = named(run, "the disk is full", f"the disk of {run.run.dir} is full: ")
        assert finding.try_.startswith("free some space: what failed is written again; ")
        error = ends_with_one_sentence(run, 1)
        assert "No space left on device" in error or "disk is full" in error
        run.again({})  # too early
        ends_with_one_sentence(run, 1, 2)
    run.again(other_clock(-90) if FAKETIME.exists() else {})
    if FAKETIME.exists():
        run.until(run.has_status, "the first status of the new process")
        words = "the clock of the trainer is 90 s behind this command's"
        named(run, "the trainer's clock is 90 s behind", words)
        run.goes_on()
        assert [one.what for one in run.found() if one.what != words] == []
    run.goes_on()
    run.run.process.send_signal(signal.SIGINT)
    status, out = run.run.end()
    assert status == 130, out
    report = audit(RunFiles(run.run.dir))
    assert report.clean, report.violation


def ends_with_one_sentence(run: Troubled, *expected: int) -> str:
    """Waits for the end of the run's command; returns the sentence, which names a file."""
    status, out = run.run.end()
    errors = [line for line in out.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and status in expected and "Traceback" not in out, out
    print(f"\n{errors[0]}")
    assert str(run.run.dir) in errors[0]
    return errors[0]


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fills a disk to the last byte within the block."""
    filler = disk / "filler"
    try:
        with filler.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free)
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
    finally:
        filler.unlink()
