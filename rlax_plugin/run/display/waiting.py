"""The phase that a command waits for before it trains or measures, shown with an estimate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlax_plugin.base.liveness.run_status import Doing, shown
from rlax_plugin.base.text.harmless import one_line

ASSUME = "rlax.deadlines.assume"
NO_DEADLINE = "no deadline ends this wait, Ctrl-C does"
_TICK_S = 1.0
_LEAST_S = 1.0  # as an estimate
_LONGEST = 200  # characters of a phase's name, or of a note: a trainer may say anything


@dataclass(frozen=True, slots=True)
class _Phase:
    """A phase that is being waited for.

    Attributes:
      about_s: expected seconds; None: unknown.
      about: the expectation, with its source.
      ends: the end of the line, which names the deadline.
      progress: the part that is done, such as ``3 of 8 problems``; empty: unknown.
    """

    what: str
    began_s: float
    about_s: float | None
    about: str
    ends: str
    progress: str = ""


class Waiting:
    """Says what is waited for and about how long: in one live line, or in a line now and then.

    Any thread may call it: a phase is replaced as a whole.

    Args:
      say: prints a line, when a phase begins and whenever it has gone on for ``every_s``; None:
        ``line`` is shown elsewhere.
      every_s: seconds between two lines about the same phase.
      clock: returns monotonic seconds.

    Attributes:
      beside: returns what else is going on; it is added to each line but the first of a phase.
    """

    def __init__(
        self,
        say: Callable[[str], None] | None,
        *,
        every_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._say = say
        self._every_s, self._clock = every_s, clock
        self._phase: _Phase | None = None
        self._said_s = 0.0
        self._ended = threading.Event()
        self.beside: Callable[[], str] = lambda: ""

    def begin(
        self,
        what: str,
        *,
        typical_s: float = 0.0,
        assumed: tuple[str, float] | None = None,
        ends: str = NO_DEADLINE,
    ) -> None:
        """Begins a phase; the phase before it has ended.

        Args:
          what: the phase, as the subject of a line.
          typical_s: seconds that it typically takes; 0: unknown.
          assumed: key with the speeds of an estimate, and the estimate, instead of ``typical_s``.
          ends: the end of the line, see ``ends_at``.
        """
        what = one_line(what, _LONGEST)
        about_s, about = None, ""
        if assumed is not None or typical_s > 0:
            key, seconds = assumed or ("", typical_s)
            about_s = max(seconds, _LEAST_S)
            source = f"at the speeds of {key}" if key else "typically"
            about = f"about {_seconds(about_s)}, {source}"
        now_s = self._said_s = self._clock()
        self._phase = _Phase(what, now_s, about_s, about, ends)
        if self._say is not None:
            self._say(f"{what} ({about})" if about_s is not None and about_s > _LEAST_S else what)

    def progress(self, text: str) -> None:
        """Sets how far the phase is, such as ``3 of 8 problems``; nothing is printed."""
        if (phase := self._phase) is not None:
            self._phase = replace(phase, progress=one_line(text, _LONGEST))

    def end(self) -> None:
        """Ends the last phase."""
        self._phase = None

    def line(self) -> str:
        """Returns the line about the phase; empty if there is none."""
        if (phase := self._phase) is None:
            return ""
        took_s = self._clock() - phase.began_s
        text = f"{phase.what}: {phase.progress}, " if phase.progress else f"{phase.what}: "
        text += _seconds(took_s)
        late = took_s > (self._every_s if phase.about_s is None else phase.about_s)
        if phase.about_s is not None:
            text += f", longer than {phase.about}" if late else f" of {phase.about}"
        text += f"; {phase.ends}" * late
        beside = self.beside()
        return f"{text} | {beside}" if beside else text

    @property
    def doing(self) -> Doing | None:
        """The phase, for the status of a run; None: there is none."""
        if (phase := self._phase) is None:
            return None
        took_s = self._clock() - phase.began_s
        what = f"{phase.what}: {phase.progress}" if phase.progress else phase.what
        return Doing(what=shown(what), since=time.time() - took_s, ends=shown(phase.ends))

    def tick(self) -> None:
        """Prints the line about a phase that has gone on for long; call it every second or so."""
        now_s = self._clock()
        if self._say is None or self._phase is None or now_s - self._said_s < self._every_s:
            return
        self._said_s = now_s
        self._say(self.line())

    def __enter__(self) -> Self:
        if self._say is not None:  # the main thread may be inside an import
            threading.Thread(target=self._tick_on, name="rlax-waiting", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()

    def _tick_on(self) -> None:
        while not self._ended.wait(_TICK_S):
            self.tick()


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


class WaitingDisplay:
    """Shows a ``Waiting`` on a console: one live line on a terminal, plain lines elsewhere.

    Args:
      show: False: nothing is shown.

    Attributes:
      waiting: the phases that are shown, within ``with``.
    """

    def __init__(self, console: Console, *, show: bool = True):
        terminal = console.is_terminal
        say = console.print if show and not terminal else None
        self.waiting = Waiting(say)
        self._live: Live | None = None
        if show and terminal:
            self._live = Live(
                get_renderable=lambda: Text(self.waiting.line()),
                console=console,
                refresh_per_second=2,
                transient=True,
            )

    def __enter__(self) -> Waiting:
        if self._live is not None:
            self._live.start()
        return self.waiting.__enter__()

    def refresh(self) -> bool:
        """Refreshes the live line at once; returns False if there is none."""
        if self._live is None:
            return False
        self._live.refresh()
        return True

    def __exit__(self, *exc: object) -> None:
        self.waiting.__exit__()
        if self._live is not None:
            self._live.stop()
