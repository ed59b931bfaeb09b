"""Measures the speeds of a run's machines, and checks its deadlines at these speeds."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping

from rlax_plugin.config import RlaxSection
from rlax_plugin.fleet.deadlines import Need, Rates, needs, sample_s
from rlax_plugin.fleet.fleet import FleetListener, Worker

log = logging.getLogger("rlax.controller")

_MOST_GONE = 1000  # workers whose speeds are kept: one may come back
_SPEEDS = (1e-6, 1e15)  # per second; what a worker says beyond them is nonsense


class Pace(FleetListener):
    """The minimum of deadlines, at the speeds measured so far.

    Until a speed is measured, ``rlax.deadlines.assume`` holds. Speeds are those of the slowest
    worker, and of writing, streaming or reading weights, whichever is slowest.

    Args:
      workers: the live workers.
      launched: number of workers that the launcher starts; None: unknown.
      warn: called with one sentence for each deadline that will not hold: once at assumed speeds,
        and once at measured ones. None: no warnings.

    Attributes:
      launched: see above.
    """

    def __init__(
        self,
        section: RlaxSection,
        workers: Mapping[str, Worker],
        launched: int | None = None,
        warn: Callable[[str], None] | None = None,
    ):
        self._section, self._workers, self._warn = section, workers, warn
        self.launched = launched
        self._weights_bytes: int | None = None
        self._first: dict[tuple[str, str], tuple[float, float]] = {}  # identity -> steps, seconds
        self._tokens_per_s: dict[tuple[str, str], float] = {}
        self._read_bytes_per_s: dict[tuple[str, str], float] = {}
        self._streamed_bytes_per_s: dict[tuple[str, str], float] = {}
        self._written_bytes_per_s: dict[None, float] = {}
        self._said: set[tuple[str, bool]] = set()
        self._heard = 0  # heartbeats since the last look

    def worker_heard(self, worker: Worker) -> None:
        """Takes the speeds from the figures of a heartbeat."""
        figures, who = worker.figures, worker.identity
        steps, decode_s = figures.get("steps_total", 0.0), figures.get("decode_s_total", 0.0)
        if steps > 0:  # what is in the first report may have been compiling
            first_steps, first_s = self._first.setdefault(who, (steps, decode_s))
            _keep(self._tokens_per_s, who, steps - first_steps, decode_s - first_s)
        size, read_s = figures.get("read_bytes", 0.0), figures.get("read_s", 0.0)
        self._moved(self._read_bytes_per_s, who, size, read_s)
        size, stream_s = figures.get("stream_bytes", 0.0), figures.get("stream_s", 0.0)
        self._moved(self._streamed_bytes_per_s, who, size, stream_s)
        # A look is at all workers: many of them take turns, so that a heartbeat stays as cheap.
        self._heard += 1
        if self._heard >= len(self._workers):
            self._forget()
            self.look()

    def _forget(self) -> None:
        """Drops the speeds of workers that have gone, once there are many."""
        live = {worker.identity for worker in self._workers.values()}
        for speeds in (self._first, self._tokens_per_s, *self._bytes_per_s):
            if len(speeds) > 2 * len(live) + _MOST_GONE:
                for who in [one for one in speeds if one not in live]:
                    del speeds[who]

    @property
    def _bytes_per_s(self) -> tuple[dict[tuple[str, str], float], ...]:
        """Speeds of workers: of reading files, and of receiving them."""
        return self._read_bytes_per_s, self._streamed_bytes_per_s

    def weighs(self, size: int) -> None:
        """Takes the size of a weight version in bytes, before it is written."""
        self._weights_bytes = size

    def wrote(self, size: int, seconds: float) -> None:
        """Takes the seconds that writing a complete part of this many bytes took."""
        _keep(self._written_bytes_per_s, None, size, seconds)
        self.look()

    def _moved[K](self, rates: dict[K, float], key: K, size: float, seconds: float) -> None:
        """Stores the speed of a transfer, unless it was only of what has changed in a version.

        That takes a time which depends little on its size.
        """
        if 2 * size >= (self._weights_bytes or 0):
            _keep(rates, key, size, seconds)

    def needed_s(self, name: str) -> float | None:
        """Returns the minimum of ``rlax.deadlines.<name>``; None: unknown. Any thread."""
        need = self._needs().get(name)
        return None if need is None else need.needed_s

    def generating_s(self, samples: int) -> float:
        """Returns the seconds to generate samples of the greatest length on all workers."""
        slots = self._slots()
        waves = math.ceil(samples / max(1, sum(slots)))
        return waves * sample_s(self._section, self._rates(), max(slots))

    def look(self) -> None:
        """Warns once of each deadline that is too short."""
        self._heard = 0
        if self._warn is None:
            return
        # The first worker is ready before a speed is measured; rlax check says what that takes. And
        # an engine that does not say how often it shows progress may well show some.
        unwatched = {"startup_s"} | ({"group_s"} if self._silent_tokens() is None else set())
        for name, need in self._needs().items():
            if need.holds or name in unwatched or (name, need.measured) in self._said:
                continue
            self._said |= {(name, need.measured)}
            text = f"warning: {need.key} {need.text}"
            log.warning("%s", text)
            self._warn(text)

    def _needs(self) -> Mapping[str, Need]:
        return needs(
            self._section,
            self._rates(),
            slots=self._slots(),
            weights_bytes=self._weights_bytes,
            silent_tokens=self._silent_tokens(),
        )

    def _slots(self) -> list[int]:
        """Returns the slots of each worker, with the expected ones that have not registered."""
        live = [worker.slots for worker in list(self._workers.values())]
        return live + [self._section.rollouts.slots] * ((self.launched or 1) - len(live))

    def _silent_tokens(self) -> int | None:
        """Returns the ``silent_tokens`` that the workers report, see ``CheckResult``."""
        told = [w.figures.get("silent_tokens", 0.0) for w in list(self._workers.values())]
        return max((int(one) for one in told if 1 <= one < math.inf), default=None)

    def _rates(self) -> Rates:
        live = {worker.identity for worker in list(self._workers.values())}
        tokens = [rate for who, rate in list(self._tokens_per_s.items()) if who in live]
        moved = [one for speeds in self._bytes_per_s for one in list(speeds.items())]
        sizes = [rate for who, rate in moved if who in live]
        sizes += self._written_bytes_per_s.values()
        measured = {"tokens_per_s": tokens, "bytes_per_s": sizes}
        found = {name: min(rates) for name, rates in measured.items() if rates}
        assumed = Rates.assumed(self._section.deadlines.assume)
        return dataclasses.replace(assumed, **found, measured=frozenset(found))


def _keep[K](rates: dict[K, float], key: K, amount: float, seconds: float) -> None:
    """Stores a speed if it is plausible."""
    least, most = _SPEEDS
    if seconds > 0 and least < (rate := amount / seconds) < most:
        rates[key] = rate
