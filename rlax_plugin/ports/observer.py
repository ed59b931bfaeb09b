"""The interface of observers, which receive a run's events and keep state across a resume."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from rlax_plugin.base.errors import alternatives
from rlax_plugin.base.types import ScoredGroup, WeightVersion
from rlax_plugin.ports.abilities import abilities_of

MOST_BYTES = 1_000_000  # of one state: all of them are written before each checkpoint
_PREFIX = "on_"


class Observer:
    """Base class of observers; override the methods that you need.

    ``on_<event>`` is called when the hook ``rlax_on_<event>`` is, with the same arguments (see
    ``hookspecs``), on the controller's event loop, so it must be quick. ``on_run_start`` is the
    first call in each process.

    ``state`` is saved with each checkpoint. A process that continues from the checkpoint passes the
    saved state to ``restore``, and then reports the later step ends and scored groups again: a
    group or a step may be reported twice, and is in the state once. Published versions, lost
    workers, starts and errors are not reported again.
    """

    def on_run_start(self, run_dir: str, config_hash: str) -> None: ...

    def on_group_scored(self, group: ScoredGroup, rejected: str | None) -> None: ...

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def on_weights_published(self, version: WeightVersion) -> None: ...

    def on_worker_lost(self, worker: str, reason: str) -> None: ...

    def on_run_error(self, error: str) -> None: ...

    def state(self) -> dict[str, Any]:
        """State for ``restore``: JSON-compatible, with strings as keys, at most 1 MB."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Returns to a saved ``state``; called at most once, before all other methods."""


def defect(part: Observer) -> str | None:
    """The reason why a part cannot receive events; None if it can."""
    known = [name for name in vars(Observer) if name.startswith(_PREFIX)]
    for name in dir(part):
        if name.startswith(_PREFIX) and name not in known:
            return f"has {name}, which is no event; {alternatives(name, known)}"
    for name in known:
        method = getattr(part, name)
        arguments = [*inspect.signature(getattr(Observer, name)).parameters][1:]
        if inspect.isgeneratorfunction(method):
            return f"has {name} as a generator, which would never run"
        try:  # events are told by keyword
            inspect.signature(method).bind(**dict.fromkeys(arguments))
        except TypeError as error:
            return f"has {name}, which must take ({', '.join(arguments)}): {error}"
    problems = abilities_of(part, Observer).problems
    return f"has a method that does not fit: {problems[0]}" if problems else None


def storable(state: object) -> dict[str, Any]:
    """A copy of a ``state``, as a later process would read it from JSON.

    Raises:
      ValueError: the copy differs from the state, or is too large; the message speaks of the part.
    """
    if not isinstance(state, dict):
        raise ValueError(f"returned {type(state).__name__} from state, expected a dict")
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"has a state that JSON cannot keep: {error}") from error
    if len(text) > MOST_BYTES:
        sizes = f"{len(text):,} bytes: at most {MOST_BYTES:,}"
        raise ValueError(f"has a state of {sizes} are kept with each checkpoint")
    if (copy := json.loads(text)) != state:
        reason = "a tuple in it would come back as a list, or a key as a text"
        raise ValueError(f"has a state that JSON cannot keep: {reason}")
    return copy
