"""Checks that the upstream symbols in use are still those that were tested.

Importing this module imports nothing of MaxText. A check takes a few milliseconds per symbol.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
from collections.abc import Iterable
from typing import Any

from maxtext_overrides.upstream import wheels
from maxtext_overrides.upstream.override import Override, OverrideError, resolve
from maxtext_overrides.upstream.sources import Sources, sha256, unified

log = logging.getLogger("rlax.maxtext")

_MOST_LINES = 60  # of one symbol's diff in an error


def signature_of(function: Any) -> str:
    """Returns parameter names and defaults without annotations, e.g. ``(state, step=None)``."""
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))


def source_hash(function: Any) -> str:
    """Returns the sha256, in hex, of the source of a function or class, decorators included."""
    return sha256(inspect.getsource(function))


def check(overrides: Iterable[Override], allow_untested: bool = False) -> None:
    """Compares signature and source of every symbol that has a digest with what was tested.

    Args:
      overrides: symbols to check; all are checked before the first error is raised.
      allow_untested: ``rlax.trainer.allow_untested``; log a warning instead of raising.

    Raises:
      OverrideError: names every symbol that differs, with what was expected and found. If the
        tested wheel was fetched by ``maxtext-check``, the differences follow.
    """
    checked = [o for o in overrides if o.sha256]
    problems = {o: problem for o in checked for problem in _problems(o)}
    if not problems:
        return
    text = "; ".join(problems.values())
    if allow_untested:
        log.warning("%s (going on: rlax.trainer.allow_untested is set)", text)
        return
    diffs = [diff for override in problems if (diff := _difference(override))]
    raise OverrideError(
        f"{text}. Install a tested version, or set rlax.trainer.allow_untested=true to run anyway. "
        f"{_how_to_compare(next(iter(problems)))}" + "".join(f"\n\n{diff}" for diff in diffs)
    )


def _problems(override: Override) -> Iterable[str]:
    try:
        found = resolve(override.symbol)[2]
        signature, digest = signature_of(found), source_hash(found)
    except OverrideError as error:
        yield f"{error} (tested with {_versions(override)})"
        return
    except (TypeError, ValueError, OSError) as error:
        yield f"{override.symbol} cannot be read: {error} (tested with {_versions(override)})"
        return
    if override.signature and signature != override.signature:
        yield (
            f"{override.symbol} has the signature {signature}, expected {override.signature} "
            f"(tested with {_versions(override)})"
        )
    elif digest != override.sha256:
        yield (
            f"{override.symbol} has another source: expected sha256 {override.sha256[:12]}..., "
            f"found {digest[:12]}... (tested with {_versions(override)})"
        )


def _versions(override: Override) -> str:
    installed = importlib.metadata.version(override.distribution)
    return f"{override.distribution} {', '.join(override.versions)}; installed: {installed}"


def _how_to_compare(override: Override) -> str:
    installed = importlib.metadata.version(override.distribution)
    return (
        f"The differences in full: make maxtext-check VERSION={installed}, or "
        f"python -m maxtext_overrides.upstream.compare {installed}"
    )


def _difference(override: Override) -> str:
    """Returns a diff of the tested source and the one in use; empty if one is not available."""
    version = override.versions[-1]
    wheel = wheels.kept(override.distribution, version)
    tested = Sources(wheel).find(override.symbol) if wheel is not None else None
    try:
        used = inspect.getsource(resolve(override.symbol)[2])
    except (OverrideError, TypeError, OSError):
        return ""
    if tested is None:
        return ""
    lines = unified(
        tested.text, used, f"{override.symbol} (tested, {version})", f"{override.symbol} (in use)"
    )
    left = len(lines) - _MOST_LINES
    more = [f"... and {left} more lines"] if left > 0 else []
    return "\n".join([*lines[:_MOST_LINES], *more])
