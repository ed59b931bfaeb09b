"""Declares what is relied on upstream and checks that it is still what was tested.

Importing this module imports nothing of MaxText. A check takes a few milliseconds per symbol.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from maxtext_overrides.upstream import wheels
from maxtext_overrides.upstream.sources import Sources, sha256, unified
from rlax_plugin.errors import RlaxError

log = logging.getLogger("rlax.maxtext")

_MOST_LINES = 60  # of one symbol's diff in an error


class OverrideError(RlaxError):
    """Something upstream is not what the override of it was written for."""


@dataclass(frozen=True, slots=True)
class Override:
    """One upstream symbol that is replaced, called or read. Each is declared once.

    Attributes:
      symbol: dotted name, e.g. ``maxtext.trainers.pre_train.train.loss_fn``; of a function, class,
        constant or module.
      use: what is done with it. ``replaced`` by ours and ``wrapped`` by ours: for a while or for
        the life of the process. ``called`` or subclassed as it is. ``read``: what it does, or
        holds, is relied on.
      why: what is changed, and why no config key can; or what it is used for.
      delete_when: the upstream change that makes it superfluous.
      relies_on: what of it must stay: arguments, positions of the result, keys, attributes.
      sha256: of the source, as ``inspect.getsource`` returns it. Empty where only ``names`` count.
      signature: names and defaults as ``signature_of`` writes them; for a clearer message.
      names: what must be given a name inside: fields, functions, imports, keys of mappings.
      versions: of ``distribution``, with which it was tested.
      distribution: the PyPI name.
    """

    symbol: str
    use: Literal["replaced", "wrapped", "called", "read"]
    why: str
    delete_when: str
    relies_on: str = ""
    sha256: str = ""
    signature: str = ""
    names: tuple[str, ...] = ()
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
    """sha256, in hex, of the source of a function or class with its decorators and comments."""
    return sha256(inspect.getsource(function))


def check(overrides: Iterable[Override], allow_untested: bool = False) -> None:
    """Compares signature and source of every symbol that has a digest with what was tested.

    Args:
      overrides: what to check; all of them are looked at before the first error is raised.
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
    """A diff of the tested source and the one in use; empty where one of them is not at hand."""
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
