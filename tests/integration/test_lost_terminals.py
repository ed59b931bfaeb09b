"""A run whose output nobody reads, whose terminal is closed, and that is ended while it imports.

A terminal and its signals belong to a process.
"""

import fcntl
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from runs import CONFIG, DEADLINE_S, HELPERS, Records, held, kill_group
from waiting import wait_until

STEPS = 6
HANGUP_ENDS = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # not as under nohup

pytestmark = pytest.mark.slow


@contextmanager
def started(
    directory: Path, output: int, *overrides: str, before: Callable[[], object] = HANGUP_ENDS
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rlax_plugin", "train", CONFIG, f"steps={STEPS}", *overrides],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=before,
    )
    os.close(output)
    try:
        yield process
    finally:
        kill_group(process)
        process.wait(DEADLINE_S)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file for which step 3 waits."""
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=":")
    return tmp_path / "go"


def until_held(directory: Path) -> None:
    wait_until(lambda: len(Records(directory).steps()) == 2, "two steps", limit_s=DEADLINE_S)


def test_a_run_whose_output_nobody_reads_goes_on_to_its_end(tmp_path: Path, go: Path) -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    filler = os.dup(write)
    with started(tmp_path, write, *held({3: go})) as process:
        until_held(tmp_path)
        os.set_blocking(filler, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(filler, b".")
        os.set_blocking(filler, True)  # it is the same pipe for both
        go.touch()
        assert process.wait(DEADLINE_S) == 0
    os.close(filler)
    os.close(read)
    assert len(Records(tmp_path).steps()) == STEPS


def test_a_run_whose_terminal_is_closed_stops_as_by_ctrl_c(tmp_path: Path, go: Path) -> None:
    controlling, terminal = pty.openpty()
    with started(tmp_path, terminal, *held({3: go})) as process:
        until_held(tmp_path)
        os.close(controlling)
        for _ in range(2):  # from the terminal, and from its shell
            process.send_signal(signal.SIGHUP)
        go.touch()
        assert process.wait(DEADLINE_S) == 130
    run = Records(tmp_path)
    assert 2 <= len(run.steps()) == run.summary()["steps"] < STEPS


def test_a_signal_while_a_run_imports_ends_it_with_130(tmp_path: Path) -> None:
    read, write = os.pipe()
    with started(tmp_path, write) as process, os.fdopen(read) as output:
        assert "importing" in output.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 130
        assert "Traceback" not in output.read()
    assert not (tmp_path / "runs").exists()
