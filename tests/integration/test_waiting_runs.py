"""The lines of a run that starts, in a pipe and on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

from finished_run import FinishedRun
from runs import CONFIG, DEADLINE_S, kill_group
from waiting import wait_until

PHASES = (
    "reading the prompts",
    "starting the controller",
    "waiting for the first worker with weights",
    "evaluating before training",
    "generating the first batch",
    "the first train step, which the trainer compiles",
    "evaluating after training",
)


def test_a_pipe_has_a_line_for_each_phase_in_order(finished_run: FinishedRun) -> None:
    lines = finished_run.said.splitlines()
    assert lines[0].startswith("rlax train ") and "typically about 3 s" in lines[0]
    begun = [next(p for p in PHASES if line.startswith(p)) for line in lines if _phase(line)]
    assert tuple(dict.fromkeys(begun)) == PHASES
    # A phase has further lines only if it takes 15 s.
    assert len(begun) < 3 * len(PHASES)
    assert "\x1b" not in finished_run.said


def _phase(line: str) -> bool:
    return line.startswith(PHASES)


def test_a_terminal_shows_the_phases_in_one_place(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    command = [sys.executable, "-m", "rlax_plugin", "train", CONFIG, "steps=2"]
    # The terminal is drawn twice a second, and a busy machine skips some of it.
    command.append("rlax.rollouts.engine.load_s=4")
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdin=theirs,  # which has the width
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        text = _all_of(ours)
        assert process.wait(DEADLINE_S) == 0, text
    finally:
        if process.poll() is None:
            kill_group(process)
            process.wait(60)
        os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert plain.startswith("rlax train ")
    # At least one of the waits lasts longer than half a second, on any machine.
    assert re.search(r"rlax\.deadlines\.assume|workers: [01] of 1 registered|local-0 ", plain)
    assert "\x1b[1A\x1b[2K" in text  # lines are written over
    assert "2/2" in plain and "held-out evaluation" in plain
    assert (tmp_path / "cache/rlax/durations/phases.json").exists()


def _all_of(terminal: int) -> str:
    """Returns the text that is written until the last process has closed the terminal."""
    parts = list[bytes]()

    def is_closed() -> bool:
        if not select.select([terminal], [], [], 1.0)[0]:
            return False
        try:
            parts.append(os.read(terminal, 1 << 16))
        except OSError:  # no process has it open
            return True
        return not parts[-1]

    wait_until(is_closed, "the end of all that is written", limit_s=DEADLINE_S)
    return b"".join(parts).decode(errors="replace")
