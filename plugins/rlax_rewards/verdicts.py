"""Compares two texts as mathematics; runs in a process of its own, with limits."""

from __future__ import annotations

import functools
import logging
import mmap
import resource

import math_verify  # imports sympy, which takes a second

_KEPT = 1024  # parsed references
_PLACES = [
    math_verify.LatexExtractionConfig(boxed_match_priority=0),
    math_verify.ExprExtractionConfig(),
]
logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its limits are off


def verdict(reference: str, answer: str | None) -> bool:
    """Compares an answer with a reference; without one, checks the reference.

    It is right if it is an expression, and can be computed within the limits of this process:
    ``9^{9^9}`` cannot be.
    """
    _leave_room()
    expected = _parsed_reference(reference)
    if answer is None and not expected:
        return False
    try:
        found = _parsed("1" if answer is None else answer)
        same = bool(found) and bool(math_verify.verify(expected, found, timeout_seconds=None))
    except MemoryError:
        raise  # this worker has none left
    # The reference can be read, so the answer is to blame, for which sympy may raise anything.
    except Exception:  # noqa: BLE001
        return answer is None
    return same or answer is None


def _leave_room() -> None:
    """Raises MemoryError if what earlier answers have left takes most of this process's memory.

    Then a new worker compares. The libraries swallow a MemoryError, so that a right answer would
    be wrong, depending on those before it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        try:
            mmap.mmap(-1, limit // 4).close()
        except OSError:
            raise MemoryError from None


def _parsed(text: str) -> list[object]:
    """Returns the expressions that a text may mean."""
    return math_verify.parse(
        f"\\boxed{{{text}}}",
        extraction_config=_PLACES,
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )


_parsed_reference = functools.lru_cache(_KEPT)(_parsed)
# The first expressions fill tables of the libraries, which takes tenths of a second. Every worker
# starts with what this module has filled, so that no answer pays for it.
verdict(r"\frac{1}{2}x^2", r"\frac{2}{4}x^{2}")
