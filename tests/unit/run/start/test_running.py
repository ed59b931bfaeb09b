"""One way up and down: what fails first is told, and nothing interrupts the end."""

import asyncio
import os
import signal
import threading

import pytest

from rlax_plugin.base.errors import DeadlineError, RlaxError
from rlax_plugin.run.start import signals
from rlax_plugin.run.start.running import Running
from rlax_plugin.run.start.signals import Signals


def failing_end() -> None:
    raise OSError("the end fails")


def test_an_error_of_ending_does_not_hide_the_first_one(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []
    with pytest.raises(RlaxError, match="the run fails"), Running(Signals(), print, "x") as up:
        up.last.callback(ended.append, "behind all parts")
        up.closing.part().callback(ended.append, "part")
        up.closing.part().callback(failing_end)
        raise RlaxError("the run fails")
    assert ended == ["part", "behind all parts"]
    assert "ending what was started has failed, too: the end fails" in caplog.text
    with pytest.raises(OSError, match="the end fails"), Running(Signals(), print, "x") as up:
        up.closing.part().callback(failing_end)


def test_what_does_not_come_up_is_ended_and_the_wait_for_it_is_named() -> None:
    ended: list[str] = []

    async def parts(up: Running) -> None:
        up.closing.part().callback(ended.append, "first")
        up.closing.part().callback(ended.append, "second")
        await asyncio.Event().wait()

    with pytest.raises(DeadlineError) as failed, Running(Signals(), print, "x") as up:
        up.bring_up(parts(up), "starting the parts", 1.0)
    assert "starting the parts" in str(failed.value)
    assert "rlax.deadlines.startup_s" in str(failed.value)
    assert ended == ["second", "first"]


def test_a_signal_interrupts_what_runs_unless_it_stops_by_itself_but_never_the_end() -> None:
    stops = [True, False]
    ended: list[str] = []

    def end() -> None:  # on the thread of the loop
        os.kill(os.getpid(), signal.SIGTERM)
        ended.append("whole")

    before = signal.getsignal(signal.SIGTERM)
    with Signals(lambda: stops.pop(0)) as signals:
        with pytest.raises(KeyboardInterrupt), Running(signals, print, "x") as up:
            up.closing.part().callback(end)
            os.kill(os.getpid(), signal.SIGTERM)  # it will stop by itself
            assert stops == [False]
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(60)
        assert (ended, stops, signals.ending) == (["whole"], [], True)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_repeated_sigterm_is_the_same_one_until_a_while_has_passed(monkeypatch) -> None:
    """That of a parent which was killed arrives once for each of its threads."""
    asked: list[int] = []
    with Signals(lambda: not asked.append(1)):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert len(asked) == 1
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # a second Ctrl-C is meant
        assert len(asked) == 3
        monkeypatch.setattr(signals, "_SAME_S", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(asked) == 4


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGUSR1", "SIGTERM"])
def test_signals_that_end_a_program_end_a_command_like_ctrl_c(name: str) -> None:
    before = signal.signal(signal.Signals[name], signal.SIG_DFL)  # it may be ignored here
    try:
        with Signals(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.Signals[name])
        assert signal.getsignal(signal.Signals[name]) is signal.SIG_DFL
    finally:
        signal.signal(signal.Signals[name], before)


def test_an_interrupt_counts_in_the_background_and_a_hangup_not_under_nohup() -> None:
    before = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGHUP)}
    try:
        with Signals():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_error_that_nobody_waits_for_is_a_failure_of_the_run() -> None:
    """So a launcher says that its workers cannot start."""

    async def parts() -> None:
        error = RlaxError("it ended 2 times in a row")
        what = {"message": str(error), "exception": error}
        asyncio.get_running_loop().call_exception_handler(what)

    with Running(Signals(), print, "x") as up:
        up.bring_up(parts(), "starting the parts", 60.0)
        with pytest.raises(RlaxError, match="2 times in a row"):
            up.supervision.check()
