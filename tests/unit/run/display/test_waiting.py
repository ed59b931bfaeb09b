"""The display of waiting, in lines and on a terminal."""

import contextlib
import fcntl
import io
import os
import pty
import struct
import termios
import threading

from rich.console import Console

from rlax_plugin.base.liveness.activity import ends_at
from rlax_plugin.base.text.terminal import console
from rlax_plugin.run.display.waiting import Waiting, WaitingDisplay

ENDS = ends_at("rlax.deadlines.startup_s", 180.0)


class Lines:
    """A ``Waiting`` without a terminal, with a clock that is set."""

    def __init__(self) -> None:
        self.now_s, self.said = 0.0, list[str]()
        self.waiting = Waiting(self.said.append, clock=lambda: self.now_s)

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.waiting.tick()


def test_a_log_has_a_line_per_phase_and_another_every_15_s() -> None:
    one = Lines()
    one.waiting.begin("importing MaxText", typical_s=20)
    one.pass_seconds(46)
    one.waiting.begin("building the model")
    one.pass_seconds(14)
    assert one.said == [
        "importing MaxText (about 20 s, typically)",
        "importing MaxText: 15 s of about 20 s, typically",
        "importing MaxText: 30 s, longer than about 20 s, typically; no deadline ends this wait, "
        "Ctrl-C does",
        "importing MaxText: 45 s, longer than about 20 s, typically; no deadline ends this wait, "
        "Ctrl-C does",
        "building the model",
    ]
    one.waiting.end()
    one.pass_seconds(100)
    assert len(one.said) == 5 and one.waiting.line() == ""


def test_a_line_has_the_progress_the_workers_and_a_late_one_the_deadline() -> None:
    one = Lines()
    one.waiting.begin("waiting", assumed=("rlax.deadlines.assume", 60.0), ends=ENDS)
    one.waiting.beside = lambda: "workers: 1 of 2 registered"
    one.waiting.progress("3 of 8 problems")
    one.now_s = 60
    assert one.waiting.line() == (
        "waiting: 3 of 8 problems, 60 s of about 60 s, at the speeds of rlax.deadlines.assume | "
        "workers: 1 of 2 registered"
    )
    one.now_s = 61
    assert (
        "61 s, longer than about 60 s, at the speeds of rlax.deadlines.assume; "
        "rlax.deadlines.startup_s = 180 s ends this wait |" in one.waiting.line()
    )
    one.waiting.begin("unknown", ends=ENDS)
    assert one.waiting.line() == "unknown: 0 s | workers: 1 of 2 registered"
    one.now_s += 16
    assert one.waiting.line().startswith("unknown: 16 s; rlax.deadlines.startup_s = 180 s ends")


def test_text_of_a_trainer_is_made_harmless() -> None:
    one = Lines()
    one.waiting.begin("a\nb\x1b[31m" + "c" * 500)
    one.waiting.progress("d\ne")
    assert one.said[0].startswith("a\\nb\\x1b[31mccc") and len(one.said[0]) < 300
    assert "d\\ne" in one.waiting.line()


def test_lines_come_while_the_main_thread_is_busy() -> None:
    said, second = list[str](), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) > 1:
            second.set()

    with Waiting(say, every_s=0.0) as waiting:
        waiting.begin("importing")
        assert second.wait(60)
    assert said[1].startswith("importing: ")


def test_a_terminal_has_one_live_line_which_is_removed() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    with os.fdopen(theirs, "w") as terminal:
        shown = Console(file=terminal, force_terminal=True, width=120)
        display = WaitingDisplay(shown)
        with display as waiting:
            waiting.begin("importing MaxText", typical_s=20)
            assert display.refresh()
            waiting.begin("building the model", typical_s=15)
            assert display.refresh()
        shown.print("done")
    text = ""
    with contextlib.suppress(OSError):  # the end of a terminal that was closed
        while part := os.read(ours, 1 << 16).decode():  # the kernel hands it over in pieces
            text += part
    os.close(ours)
    assert "importing MaxText: 0 s of about 20 s, typically" in text
    assert "building the model: 0 s of about 15 s, typically" in text
    assert text.count("\n") <= 4 and "\x1b[2K" in text  # the line is written over


def test_nothing_is_shown_if_so_asked() -> None:
    out = io.StringIO()
    with WaitingDisplay(console(out), show=False) as waiting:
        waiting.begin("importing")
        waiting.tick()
    assert out.getvalue() == ""
    with WaitingDisplay(console(out)) as waiting:
        waiting.begin("importing [bold]")
    assert out.getvalue() == "importing [bold]\n"
