"""The workers that are starting, and their description for the display."""

from __future__ import annotations

from collections.abc import Iterable

from rlax_plugin.base.text.harmless import is_one_line, one_line
from rlax_plugin.rollout.fleet.identities import LONGEST_NAME
from rlax_plugin.rollout.fleet.worker import Worker

_MOST_NAMED = 3
_MOST_STARTING = 4096
_LONGEST_DOING = 40  # characters of an activity
_BUILDING = "building the engine"  # an engine may not say more


class Starting:
    """The workers that have requested the config but have not registered.

    What they say is shown as it is, made harmless and short.
    """

    def __init__(self) -> None:
        self._doing: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._doing)

    def note(self, name: str, doing: str) -> None:
        """Notes the activity of a worker, or that it was rejected; empty: it builds its engine."""
        known = name in self._doing or len(self._doing) < _MOST_STARTING
        if name and known and is_one_line(name, LONGEST_NAME):
            self._doing[name] = one_line(doing, _LONGEST_DOING)

    def described(
        self, workers: Iterable[Worker], expected: int | None, *, published: bool = True
    ) -> str:
        """Returns the number of registered workers, and what those do that are not ready.

        A worker process first starts and requests the run's config. Then it builds its engine,
        which may say what it does. Then it registers and loads weights. Any thread may call this.

        Args:
          workers: the registered ones.
          expected: number of workers that the launcher starts; None: unknown.
          published: True once there are weights to load.

        Returns:
          The description; empty once all expected workers are ready.
        """
        registered = list(workers)
        for worker in registered:
            self._doing.pop(worker.name, None)
        starting = dict(self._doing)
        doing: dict[str, list[str]] = {}
        for name, activity in sorted(starting.items()):
            doing.setdefault(activity or _BUILDING, []).append(name)
        if loading := sorted(worker.name for worker in registered if worker.version < 0):
            doing["loading weights" if published else "waiting for weights"] = loading
        missing = 0 if expected is None else expected - len(registered) - len(starting)
        if not doing and expected is not None and missing <= 0:
            return ""
        parts = [f"{_named(names)} {activity}" for activity, names in doing.items()]
        parts += [f"{missing} starting"] * (missing > 0)
        of = "" if expected is None else f" of {expected}"
        said = f" ({'; '.join(parts)})" if parts else ""
        return f"workers: {len(registered)}{of} registered{said}"


def _named(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
