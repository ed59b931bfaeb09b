"""Checks that the upstream symbols in use are still those that were tested.

Importing this module imports nothing of MaxText. A check takes a few milliseconds per symbol.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.metadata
import inspect
import logging
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from maxtext_overrides.upstream.override import Override, OverrideError, resolve

WHEELS = Path(".cache/maxtext")
"""Folder of the wheels that ``make maxtext-check`` keeps, below the working directory."""

log = logging.getLogger("rlax.maxtext")

_MOST_LINES = 60  # of one symbol's diff in an error


def signature_of(function: Any) -> str:
    """Returns parameter names and defaults without annotations, e.g. ``(state, step=None)``."""
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))


def source_hash(function: Any) -> str:
    """Returns the sha256, in hex, of the source of a function or class, decorators included."""
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()


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
    return f"The differences in full, in a checkout: make maxtext-check VERSION={installed}"


def kept_wheel(distribution: str, version: str) -> Path | None:
    """Returns the wheel of a version if it was fetched before."""
    name = distribution.replace("-", "_")
    return next(iter(sorted(WHEELS.glob(f"{name}-{version}-*.whl"))), None)


def _difference(override: Override) -> str:
    """Returns a diff of the tested source and the one in use; empty if one is not available."""
    version = override.versions[-1]
    if (wheel := kept_wheel(override.distribution, version)) is None:
        return ""
    try:
        used = resolve(override.symbol)[2]
        tested_source, used_source = _source_in(wheel, used), inspect.getsource(used)
    except (OverrideError, AttributeError, LookupError, StopIteration, TypeError, OSError):
        return ""
    except (SyntaxError, UnicodeDecodeError, zipfile.BadZipFile, zlib.error) as error:
        return f"{wheel} is damaged ({error}); remove it"
    names = f"{override.symbol} (tested, {version})", f"{override.symbol} (in use)"
    diff = difflib.unified_diff(tested_source.splitlines(), used_source.splitlines(), *names)
    lines = [line.rstrip("\n") for line in diff]
    left = len(lines) - _MOST_LINES
    more = [f"... and {left} more lines"] if left > 0 else []
    return "\n".join([*lines[:_MOST_LINES], *more])


def _source_in(wheel: Path, function: Any) -> str:
    """Returns the source that a wheel has of a function or class, in the module that defines it."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{function.__module__.replace('.', '/')}.py").decode()
    node: Any = ast.parse(text)
    for name in function.__qualname__.split("."):
        node = next(inner for inner in node.body if getattr(inner, "name", "") == name)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
