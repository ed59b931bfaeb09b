"""The reward ``reasoning_gym``: the scorer of the task from which a prompt is.

https://github.com/open-thought/reasoning-gym has about a hundred tasks. Each of them generates
entries ``{"question", "answer", "metadata"}``, and has a scorer, which may accept several answers
and give a part of the reward.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from rlax_plugin.api import BuildContext, ConfigError, Prompt, Reward
from rlax_rewards.answers import PLACES, AnswerConfig, Place, answer_in
from rlax_rewards.executed import is_harmless_arithmetic, is_harmless_literal

PACKAGE = "reasoning_gym"
_TASK = "source_dataset"  # in an entry's metadata


class ReasoningGymConfig(AnswerConfig):
    """What the task's own scorer gives: 0 to 1. It needs the extra reasoning-gym."""

    answer: Place = Field("tag", description=f"which part of the completion it is. {PLACES}")
    task: str = Field(
        "",
        description="name of the task; empty: each prompt says it in its metadata, as entries of "
        "reasoning-gym do",
    )


class ReasoningGym(Reward):
    """0.0 without an answer, else what the scorer gives.

    The entry is made from the prompt: the answer is its reference; ``metadata`` is the column
    ``metadata`` of a file of entries or, without such a column, all metadata of the prompt. JSON
    has made lists of its tuples; they are tuples again for a task whose scorer gives its own answer
    more then, such as arc_agi.

    Scorers that execute the answer as Python get it only if it is data or arithmetic, see
    ``executed``; other answers get 0.0. They may execute parts of the entry as well, so train only
    on entries that reasoning-gym has generated.
    """

    def __init__(self, config: ReasoningGymConfig):
        self._config = config
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a package that it imports
            from reasoning_gym import factory
        self._factory = factory
        self._scorer = functools.cache(self._scorer_of)
        self._wants_tuples: dict[str, bool] = {}  # task -> whether lists are to be tuples

    def __call__(self, prompt: Prompt, completion: str) -> float:
        """Scores one completion.

        Raises:
          ValueError: the prompt is not from a task, or says no known one.
        """
        config = self._config
        entry = _entry(prompt)
        name = config.task or entry["metadata"].get(_TASK)
        if not isinstance(name, str):
            raise ValueError(
                f"prompt {prompt.id} has no {_TASK!r} in its metadata; it has "
                f"{sorted(map(str, prompt.metadata))[:20]}"
            )
        score, is_harmless = self._scorer(name)
        answer = answer_in(completion, config.answer, marker=config.marker, tag=config.tag)
        if not answer or not (answer == prompt.reference or is_harmless(answer)):
            return 0.0
        return float(score(answer=answer, entry=self._as_generated(name, score, entry)))

    def _as_generated(
        self, name: str, score: Callable[..., float], entry: dict[str, Any]
    ) -> dict[str, Any]:
        tuples = entry | {"metadata": _with_tuples(entry["metadata"])}
        if name not in self._wants_tuples and (own := entry["answer"]):
            self._wants_tuples[name] = score(answer=own, entry=tuples) > score(
                answer=own, entry=entry
            )
        return tuples if self._wants_tuples.get(name) else entry

    def _scorer_of(self, name: str) -> tuple[Callable[..., float], Callable[[str], bool]]:
        """Scores an answer; and says whether it may be given one."""
        if name not in self._factory.DATASETS:
            raise ValueError(f"reasoning-gym has no task {name!r}")
        score: Any = self._factory.get_score_answer_fn(name)
        source = inspect.getsource(score)
        if "parse_expr(" in source:
            return score, is_harmless_arithmetic
        return score, is_harmless_literal if "eval(" in source else lambda answer: True


def _entry(prompt: Prompt) -> dict[str, Any]:
    inside = prompt.metadata.get("metadata")
    metadata = inside if isinstance(inside, Mapping) else prompt.metadata
    question = prompt.metadata.get("question", prompt.text)
    return {"question": question, "answer": prompt.reference, "metadata": dict(metadata)}


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    if isinstance(value, Mapping):
        return {name: _with_tuples(one) for name, one in value.items()}
    return value


def check_installed(config: ReasoningGymConfig, context: BuildContext) -> None:
    """Whether the package is there.

    Raises:
      ConfigError: it is not.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        reason = "needs the package reasoning-gym: pip install '.[reasoning-gym]' in a checkout"
        raise ConfigError("rlax.rewards", PACKAGE, reason)
