"""Calls the scorers of reasoning-gym; runs in a process of its own, with limits."""

from __future__ import annotations

import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from rlax_rewards.executed import is_harmless_arithmetic, is_harmless_literal

with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)  # of a package that it imports
    from reasoning_gym import factory

# Their scorers take every text for right, as bool("False") is true.
_EXACT = frozenset({"game_of_life_halting"})
_TRIED = ("0", "[]", "{}", "a")  # to try a scorer with where the entry has no answer
_NUMBERS = re.compile(r"\d[\d_.]*(?:e[-+]?\d+)?", re.IGNORECASE)
_WORDS = re.compile(r"[^\W\d_]+")
_NOT_FINITE = frozenset({"nan", "inf", "infinity", "nanj", "infj", "nani", "infi"})
_wants_tuples: dict[str, bool] = {}  # task -> whether lists are to be tuples


def score(name: str, entry: dict[str, Any], answer: str | None) -> tuple[float, str]:
    """Returns the score of an answer by its task's scorer, in [0, 1], and an error or empty text.

    Args:
      name: name of the task.
      entry: the entry.
      answer: None tries the scorer with the entry's own answer.
    """
    if name not in factory.DATASETS:
        return 0.0, f"reasoning-gym has no task {name!r}"
    scorer, is_harmless = _scorer_of(name)
    own = entry["answer"]
    if answer is None:
        answer = own or _TRIED[0]
    if not answer or not (answer == own or (is_harmless(answer) and _is_finite(answer))):
        return 0.0, ""
    if name in _EXACT:
        return float(answer.strip() == own), ""
    try:
        entry = _as_generated(name, scorer, entry)
        return _within(scorer(answer=answer, entry=entry)), ""
    except MemoryError:
        raise  # this worker has none left
    # A scorer may raise anything: for an answer that it does not expect, or for a broken entry.
    except Exception:  # noqa: BLE001
        return 0.0, _broken(scorer, entry)


def _within(given: Any) -> float:
    """Returns a scorer's result as a number in [0, 1]; 0 if it is not finite."""
    found = float(given)
    return min(1.0, max(0.0, found)) if math.isfinite(found) else 0.0


def _is_finite(answer: str) -> bool:
    """True if no number of an answer is infinite or nan, which some scorers accept as right.

    Letters that are part of a text, such as the name Nan in a sentence, do not count.
    """
    words = {word.lower() for word in _WORDS.findall(answer)}
    if words & _NOT_FINITE and all(word in _NOT_FINITE or len(word) == 1 for word in words):
        return False
    return all(math.isfinite(_float(one)) for one in _NUMBERS.findall(answer) if "e" in one.lower())


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # such as 1.2.3e4
        return 0.0


def _broken(scorer: Callable[..., Any], entry: dict[str, Any]) -> str:
    """Returns the reason why an entry cannot be scored; empty if its own answer can.

    If the entry has no answer, some answers are tried.
    """
    said = ""
    for answer in [entry["answer"]] if entry["answer"] else _TRIED:
        try:
            float(scorer(answer=answer, entry=entry))
        except Exception as error:  # noqa: BLE001  as above
            said = said or f"its entry cannot be scored: {type(error).__name__}: {error}"
        else:
            return ""
    return said


def _as_generated(name: str, scorer: Callable[..., Any], entry: dict[str, Any]) -> dict[str, Any]:
    tuples = entry | {"metadata": _with_tuples(entry["metadata"])}
    if name not in _wants_tuples and (own := entry["answer"]):
        _wants_tuples[name] = scorer(answer=own, entry=tuples) > scorer(answer=own, entry=entry)
    return tuples if _wants_tuples.get(name) else entry


@functools.cache
def _scorer_of(name: str) -> tuple[Callable[..., Any], Callable[[str], bool]]:
    """Returns a task's scorer, and a check whether an answer is safe to give to it."""
    scorer: Any = factory.get_score_answer_fn(name)
    source = inspect.getsource(scorer)
    if "parse_expr(" in source:
        return scorer, is_harmless_arithmetic
    return scorer, is_harmless_literal if "eval(" in source else lambda answer: True


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    if isinstance(value, Mapping):
        return {name: _with_tuples(one) for name, one in value.items()}
    return value
