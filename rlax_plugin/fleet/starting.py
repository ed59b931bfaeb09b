"""Describes the workers that are starting, for the display."""

from __future__ import annotations

from collections.abc import Iterable

from rlax_plugin.fleet.fleet import Worker

_MOST_NAMED = 3


def described(workers: Iterable[Worker], expected: int | None, asked: int) -> str:
    """Returns the workers that have registered, and the activity of those that are not ready.

    A worker process first starts and requests the run's config. Then it imports its engine's
    libraries and compiles its programs. Then it registers and loads weights.

    Args:
      workers: the registered ones.
      expected: number of workers that the launcher starts; None: unknown.
      asked: number of requests of the config so far.

    Returns:
      The description; empty once all expected workers are ready.
    """
    registered = list(workers)
    loading = sorted(worker.name for worker in registered if worker.version < 0)
    count = len(registered)
    if not loading and expected is not None and count >= expected:
        return ""
    if expected is None:
        return f"workers: {count} registered" + _doing(_named(loading, "loading weights"))
    building = max(0, min(asked, expected) - count)
    starting = max(0, expected - count - building)
    doing = [f"{starting} starting"] if starting else []
    doing += [f"{building} importing and compiling"] if building else []
    doing += _named(loading, "loading weights")
    return f"workers: {count} of {expected} registered" + _doing(doing)


def _named(names: list[str], doing: str) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [f"{', '.join(names[:_MOST_NAMED])}{more} {doing}"]


def _doing(parts: list[str]) -> str:
    return f" ({'; '.join(parts)})" if parts else ""
