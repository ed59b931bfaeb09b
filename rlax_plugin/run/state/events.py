"""The events in the life of a group of samples, in the order in which they happen.

    Issued -> [Reissued ...] -> Generated -> Scored -> Trained
       |                                       |  |--> Dropped   (too_stale, quarantined)
       '--> Dropped (not_needed)               '--> rejected: its end

A group is rejected by a filter, because of its first samples, or because it is no longer needed
when those are scored.

In episodes of several turns each later turn is ``Generated``, too, between the first turn of the
group and its score; some may be ``Discarded`` and generated again. Where an environment begins its
episodes itself, each turn is ``Generated`` by itself, also the first one.

A run's state is the sum of its events (``run/state/run_state.py``). They are recorded in this
order, and a resume adds them up again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from rlax_plugin.base.errors import RlaxError


@dataclass(frozen=True, slots=True)
class Issued:
    """One choice of the sampler: groups ``first``, ``first + 1``, ... of these prompt ids."""

    first: int
    prompts: tuple[str, ...]
    min_version: int


@dataclass(frozen=True, slots=True)
class Reissued:
    """A group was issued again: to another worker, after a restart, or because its turns are void.

    Attributes:
      attempt: counts from 1.
      ending: the ``Ending`` of the attempt before; ``reason`` says it in words.
    """

    group: int
    attempt: int
    reason: str
    ending: str


@dataclass(frozen=True, slots=True)
class Generated:
    """A request was generated, by these workers and with these weight versions.

    Attributes:
      attempt: attempt of the group.
      sample, trajectory, turn: see ``Key``; None: the first turn of all samples of the group.
    """

    group: int
    attempt: int
    workers: tuple[str, ...]
    oldest_version: int
    newest_version: int
    samples: int
    tokens: int
    sample: int | None = None
    trajectory: int = 0
    turn: int = 0

    @property
    def begins_episodes(self) -> bool:
        """True if its samples are the first turns of episodes."""
        return (self.trajectory, self.turn) == (0, 0)


@dataclass(frozen=True, slots=True)
class Discarded:
    """A turn became void: its episode was played again, and did not reach it.

    The environment gave another input than before a restart, or requested fewer turns.
    """

    group: int
    sample: int
    trajectory: int
    turn: int


@dataclass(frozen=True, slots=True)
class Scored:
    """A group was scored, and accepted or rejected.

    Attributes:
      passed: samples at or above the pass threshold.
      scored: samples with a reward, replaced ones included; the others' rewards failed.
      rejected: reason why it will not train, such as ``Ending.NOT_NEEDED``; None: accepted.
      samples_saved, tokens_saved: see ``Dropped``; only for a group that is no longer needed.
    """

    group: int
    passed: int
    scored: int
    rejected: str | None
    samples_saved: int = 0
    tokens_saved: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """A batch was trained; ``groups`` are in row order, ``staleness`` is the largest of theirs."""

    step: int
    groups: tuple[int, ...]
    staleness: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group will not be trained: an accepted one, or one that is not generated yet.

    Attributes:
      reason: its ``Ending``.
      samples: number of samples that were not generated to the end.
      tokens: estimate of the tokens saved by that; see ``run/controller/screening.py``.
    """

    group: int
    reason: str
    samples: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A weight version became visible; ``digest`` sums up its fingerprints (crc32c, hex)."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run was resumed from the trainer's checkpoint of ``step``."""

    step: int


@dataclass(frozen=True, slots=True)
class Resized:
    """The number of workers was changed, with the reason, in words."""

    before: int
    workers: int
    reason: str


Event = (
    Issued
    | Reissued
    | Generated
    | Discarded
    | Scored
    | Trained
    | Dropped
    | Published
    | Resumed
    | Resized
)

_JSON = json.JSONEncoder(separators=(",", ":"))  # made once: dumps would make one for each event
_KINDS: dict[str, Any] = {
    cls.__name__.lower(): cls
    for cls in (
        *(Issued, Reissued, Generated, Discarded, Scored),
        *(Trained, Dropped, Published, Resumed, Resized),
    )
}
_DEFAULTS = {
    cls: {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    for cls in _KINDS.values()
}


def kind(event: Event) -> str:
    """Returns the event's name in files: its class name in lower case."""
    return type(event).__name__.lower()


def group_of(event: Event) -> int | None:
    """Returns the group that an event concerns; None for events about several or none."""
    return getattr(event, "group", None)


def encode(event: Event) -> str:
    """Returns one line of JSON; fields with their default value are left out."""
    defaults = _DEFAULTS[type(event)]
    values = {name: getattr(event, name) for name in event.__slots__}
    if defaults:
        values = {n: v for n, v in values.items() if n not in defaults or v != defaults[n]}
    return _JSON.encode({"event": kind(event), **values})


def decode(document: Mapping[str, Any]) -> Event:
    """Returns the event that ``encode`` wrote, from its parsed JSON.

    Raises:
      RlaxError: the document is not an event, or has other fields.
    """
    values = dict(document)
    cls = _KINDS.get(values.pop("event", ""))
    if cls is not None:
        values = _DEFAULTS[cls] | values
    if cls is None or values.keys() != set(cls.__slots__):
        raise RlaxError(f"not an event of this version: {dict(document)}")
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return cls(**values | lists)
