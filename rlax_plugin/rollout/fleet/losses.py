"""The rule for workers that are lost again and again: they rest before they get groups again.

A worker that sends heartbeats but cannot be called registers again after each loss, and a batch
waits for the groups that it was sent in between. One loss has no consequence: a launcher has
started the worker again. With each further loss the rest doubles, and each answer takes a loss off.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_S, _LONGEST_S = 15.0, 600.0  # rests, after the second loss and at most
_FORGOTTEN_S = 600.0  # after the last rest, or the last loss without one
_MOST_NAMES = 10_000  # that are remembered; the one that was lost longest ago is forgotten first


@dataclass(slots=True)
class _Record:
    losses: int
    until_s: float  # end of the rest


class Losses:
    """Remembers the recent losses of each name, also when its process has gone."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def lost(self, name: str, now_s: float) -> float:
        """Notes the loss of a worker; returns the seconds that it is to rest, often 0."""
        record = self._records.pop(name, None)
        before = 0 if record is None or now_s - record.until_s > _FORGOTTEN_S else record.losses
        rest_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(before - 1, 30)) if before else 0.0
        self._records[name] = _Record(before + 1, now_s + rest_s)
        if len(self._records) > _MOST_NAMES:
            del self._records[next(iter(self._records))]
        return rest_s

    def answered(self, name: str, now_s: float) -> None:
        """Takes a loss off a worker that has answered a request, and ends its rest."""
        if (record := self._records.get(name)) is not None:
            record.losses, record.until_s = record.losses - 1, min(now_s, record.until_s)
            if not record.losses:
                del self._records[name]

    def count(self, name: str) -> int:
        """Returns the number of losses that count."""
        record = self._records.get(name)
        return 0 if record is None else record.losses

    def rest_s(self, name: str, now_s: float) -> float:
        """Returns the seconds for which a worker still rests."""
        record = self._records.get(name)
        return 0.0 if record is None else max(0.0, record.until_s - now_s)
