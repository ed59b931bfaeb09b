"""Declares what is replaced in MaxText and checks that it is still what was tested.

Importing this module imports nothing of MaxText. A check takes a few milliseconds per symbol.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import logging
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlax_plugin.errors import RlaxError

log = logging.getLogger("rlax.maxtext")


class OverrideError(RlaxError):
    """Something upstream is not what the override of it was written for."""


@dataclass(frozen=True, slots=True)
class Override:
    """One upstream symbol that is replaced, or relied on although it is private.

    Attributes:
      symbol: dotted name, e.g. ``maxtext.trainers.pre_train.train.loss_fn``.
      signature: names and defaults as ``signature_of`` writes them.
      sha256: of the source as ``source_hash`` computes it.
      why: what is changed, and why no config key can.
      delete_when: the upstream change that makes it superfluous.
      versions: of ``distribution``, with which it was tested.
      distribution: the PyPI name.
    """

    symbol: str
    signature: str
    sha256: str
    why: str
    delete_when: str
    versions: tuple[str, ...] = ("0.2.5",)
    distribution: str = "maxtext"


def resolve(symbol: str) -> tuple[Any, str, Any]:
    """(module or class, attribute name, object) of a dotted name.

    Raises:
      OverrideError: the module or the attribute does not exist.
    """
    owner_name, _, name = symbol.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_name)
        return owner, name, getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise OverrideError(f"{symbol} does not exist: {error}") from None


def signature_of(function: Any) -> str:
    """Parameter names and defaults without annotations, e.g. ``(state, step=None)``."""
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))


def source_hash(function: Any) -> str:
    """sha256, in hex, of the function's source with its decorators and comments."""
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()


def check(overrides: Iterable[Override], allow_untested: bool = False) -> None:
    """Compares signature and source of every symbol with what was tested.

    Args:
      overrides: what to check; all of them are looked at before the first error is raised.
      allow_untested: ``rlax.allow_untested_maxtext``; log a warning instead of raising.

    Raises:
      OverrideError: names every symbol that differs, with what was expected and found.
    """
    problems = [problem for override in overrides for problem in _problems(override)]
    if not problems:
        return
    text = "; ".join(problems)
    if allow_untested:
        log.warning("%s (going on: rlax.allow_untested_maxtext is set)", text)
        return
    raise OverrideError(
        f"{text}. Install a tested version, or set rlax.allow_untested_maxtext=true to run anyway"
    )


def _problems(override: Override) -> Iterable[str]:
    try:
        _, _, found = resolve(override.symbol)
    except OverrideError as error:
        yield f"{error} (tested with {_versions(override)})"
        return
    if (signature := signature_of(found)) != override.signature:
        yield (
            f"{override.symbol} has the signature {signature}, expected {override.signature} "
            f"(tested with {_versions(override)})"
        )
    elif (digest := source_hash(found)) != override.sha256:
        yield (
            f"{override.symbol} has another source: expected sha256 {override.sha256[:12]}..., "
            f"found {digest[:12]}... (tested with {_versions(override)})"
        )


def _versions(override: Override) -> str:
    installed = importlib.metadata.version(override.distribution)
    return f"{override.distribution} {', '.join(override.versions)}; installed: {installed}"
