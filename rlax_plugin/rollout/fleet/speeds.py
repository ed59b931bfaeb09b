"""Compares how fast the workers of a run decode, as their heartbeats report it.

Fleets are mixed: older chips, a throttled host. What a worker is given must end when the other
groups of its batch end, so the dispatcher needs to know its speed and not only its slots.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rlax_plugin.rollout.fleet.identities import Identity
from rlax_plugin.rollout.fleet.worker import Worker

_HALF_LIFE_S = 5.0
"""Seconds after which a report counts half: a throttled host must be noticed within a batch."""
_FORGOTTEN_S = 8.0
"""Idle seconds after which only new reports count, such as a trial's: one step may have hung."""
_NOISE = 1.25
"""Workers whose speeds differ by less than this factor from the median count as equal.

Slots that are half empty decode as much faster than full ones, which says nothing of the worker.
"""
_LEAST_S = 0.05  # of decoding: a figure of less says more of the machine's other work
_FEW_STEPS, _ROUGH = 64.0, 4.0
"""Decode steps up to which, as after a trial, only differences by more than this factor count."""
_MOST = 100.0  # times the median, or the median this speed: beyond it, a report is nonsense


@dataclass(slots=True)
class _Decoded:
    """The newest report of a worker, and the sums over its reports, in which older ones fade."""

    total_steps: float
    total_s: float
    at_s: float
    steps: float = 0.0
    seconds: float = 0.0

    def add(self, total_steps: float, total_s: float, now_s: float) -> None:
        steps, seconds = total_steps - self.total_steps, total_s - self.total_s
        if steps < 0 or seconds < 0:  # its engine was started again
            steps = seconds = 0.0
        elif not (steps and seconds):  # it was idle
            return
        idle_s = now_s - self.at_s
        faded = 0.5 ** (idle_s / _HALF_LIFE_S) if idle_s < _FORGOTTEN_S else 0.0
        self.steps, self.seconds = self.steps * faded + steps, self.seconds * faded + seconds
        self.total_steps, self.total_s, self.at_s = total_steps, total_s, now_s


class Speeds:
    """Sets ``tokens_per_s``, ``measured_s`` and ``speed`` of workers from their heartbeats.

    Args:
      workers: the live workers.
    """

    def __init__(self, workers: Mapping[str, Worker]):
        self._workers = workers
        self._decoded: dict[Identity, _Decoded] = {}
        self._heard = 0  # heartbeats since the workers were compared

    def heard(self, worker: Worker, now_s: float | None = None) -> bool:
        """Takes the figures of a heartbeat; compares all workers once each had its turn.

        Args:
          now_s: time of ``time.monotonic``; None: now.

        Returns:
          True if they were compared.
        """
        figures, now_s = worker.figures, time.monotonic() if now_s is None else now_s
        steps, decode_s = figures.get("steps_total", 0.0), figures.get("decode_s_total", 0.0)
        if steps > 0 and decode_s > 0:
            # What is in the first report may have been compiling.
            one = self._decoded.setdefault(worker.identity, _Decoded(steps, decode_s, now_s))
            one.add(steps, decode_s, now_s)
            if one.seconds >= _LEAST_S:
                if not worker.tokens_per_s:  # it has tried itself out and now gets requests
                    self._heard = len(self._workers)
                worker.tokens_per_s, worker.measured_s = one.steps / one.seconds, one.at_s
            elif one.seconds:  # a trial that was too short to say that the worker is still slow
                worker.tokens_per_s = 0.0
        self._heard += 1
        if due := self._heard >= len(self._workers):
            self._compare()
        return due

    def _compare(self) -> None:
        self._heard = 0
        live = {one.identity: one for one in self._workers.values()}
        self._decoded = {who: one for who, one in self._decoded.items() if who in live}
        measured = [one.tokens_per_s for one in live.values() if one.tokens_per_s > 0]
        median = statistics.median(measured) if measured else 0.0
        for one in live.values():
            ratio = one.tokens_per_s / median if one.tokens_per_s > 0 else 1.0
            decoded = self._decoded.get(one.identity)
            noise = _ROUGH if decoded is None or decoded.steps < _FEW_STEPS else _NOISE
            equal = 1 / noise < ratio < noise
            one.speed = 1.0 if equal else min(max(ratio, 1 / _MOST), _MOST)
