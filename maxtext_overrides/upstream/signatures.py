"""Checks that the upstream symbols in use are still those that were tested.

Importing this module imports nothing of MaxText. A check takes a few milliseconds per symbol.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import logging
from collections.abc import Iterable
from typing import Any

from maxtext_overrides.upstream.override import Override, OverrideError, resolve

log = logging.getLogger("rlax.maxtext")


def source_hash(function: Any) -> str:
    """Returns the sha256, in hex, of the source of a function or class, decorators included."""
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()


def check(overrides: Iterable[Override], allow_untested: bool = False) -> None:
    """Compares the source of every symbol that has a digest with what was tested.

    Args:
      overrides: symbols to check; all are checked before the first error is raised.
      allow_untested: ``rlax.trainer.allow_untested``; log a warning instead of raising.

    Raises:
      OverrideError: names every symbol that differs, with what was expected and found.
    """
    checked = [o for o in overrides if o.sha256]
    problems = {o: problem for o in checked for problem in _problems(o)}
    if not problems:
        return
    text = "; ".join(problems.values())
    if allow_untested:
        log.warning("%s (going on: rlax.trainer.allow_untested is set)", text)
        return
    installed = importlib.metadata.version(next(iter(problems)).distribution)
    raise OverrideError(
        f"{text}. Install a tested version, or set rlax.trainer.allow_untested=true to run anyway. "
        f"The differences in full, in a checkout: make maxtext-check VERSION={installed}"
    )


def _problems(override: Override) -> Iterable[str]:
    try:
        digest = source_hash(resolve(override.symbol)[2])
    except OverrideError as error:
        yield f"{error} (tested with {_versions(override)})"
        return
    except (TypeError, ValueError, OSError) as error:
        yield f"{override.symbol} cannot be read: {error} (tested with {_versions(override)})"
        return
    if digest != override.sha256:
        yield (
            f"{override.symbol} has another source: expected sha256 {override.sha256[:12]}..., "
            f"found {digest[:12]}... (tested with {_versions(override)})"
        )


def _versions(override: Override) -> str:
    installed = importlib.metadata.version(override.distribution)
    return f"{override.distribution} {', '.join(override.versions)}; installed: {installed}"
