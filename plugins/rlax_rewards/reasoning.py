"""The reward ``reasoning_gym``, which uses the scorer of a prompt's task.

https://github.com/open-thought/reasoning-gym has about a hundred tasks. Each of them generates
entries ``{"question", "answer", "metadata"}``, and has a scorer, which may accept several answers
and give a part of the reward.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    LimitedFunction,
    OverLimitError,
    Prompt,
    Reward,
    Score,
)
from rlax_rewards.answers import PLACES, AnswerConfig, Place, answer_in
from rlax_rewards.budget import CpuBudget, check_budget

PACKAGE = "reasoning_gym"
_TASK = "source_dataset"  # in an entry's metadata


class ReasoningGymConfig(AnswerConfig, CpuBudget):
    """The score of the task's own scorer, 0 to 1. It needs the extra reasoning-gym."""

    answer: Place = Field("tag", description=f"which part of the completion it is. {PLACES}")
    task: str = Field(
        "",
        description="name of the task; empty: each prompt says it in its metadata, as entries of "
        "reasoning-gym do",
    )


class ReasoningGym(Reward):
    """0.0 without an answer, else the score of the task's scorer.

    The entry is made from the prompt: the answer is its reference; ``metadata`` is the column
    ``metadata`` of a file of entries or, without such a column, all metadata of the prompt. JSON
    turns tuples into lists; they become tuples again for a task whose scorer then gives its own
    answer a higher score, such as arc_agi.

    Scorers that execute the answer as Python get it only if it is data or arithmetic, see
    ``executed``; other answers get 0.0. They may execute parts of the entry as well, so train only
    on entries that reasoning-gym has generated. They run in a process with a limit on CPU time and
    memory: an answer that needs more, or for which its scorer raises or returns no number, gets
    0.0.
    """

    def __init__(self, config: ReasoningGymConfig, score: LimitedFunction):
        self._config, self._score = config, score

    def __call__(self, prompt: Prompt, completion: str) -> float | Score:
        """Scores one completion.

        Raises:
          ValueError: the prompt is not from a task, or names an unknown one.
        """
        config = self._config
        entry = _entry(prompt)
        name = config.task or entry["metadata"].get(_TASK)
        if not isinstance(name, str):
            raise ValueError(
                f"prompt {prompt.id} has no {_TASK!r} in its metadata; it has "
                f"{sorted(map(str, prompt.metadata))[:20]}"
            )
        answer = answer_in(completion, config.answer, marker=config.marker, tag=config.tag)
        try:
            score, wrong = self._score(name, entry, answer or "")
        except OverLimitError as error:
            if answer is None:
                raise
            # The answer took too long and scores 0; if even no answer does, the entry is to blame,
            # and this call raises the error.
            self._score(name, entry, None)
            return Score(0.0, ending=error.ending)
        if wrong:
            raise ValueError(f"prompt {prompt.id}: {wrong}")
        return score


def _entry(prompt: Prompt) -> dict[str, Any]:
    inside = prompt.metadata.get("metadata")
    metadata = inside if isinstance(inside, Mapping) else prompt.metadata
    question = prompt.metadata.get("question", prompt.text)
    return {"question": question, "answer": prompt.reference, "metadata": dict(metadata)}


def build_reasoning_gym(config: ReasoningGymConfig, context: BuildContext) -> ReasoningGym:
    """Returns the reward, with a process that scores."""
    return ReasoningGym(config, config.limited("rlax_rewards.scorers:score", context))


def check_reasoning_gym(config: ReasoningGymConfig, context: BuildContext) -> None:
    """Checks that the package is installed, and the budget.

    Raises:
      ConfigError: the package is not installed; or see ``check_budget``.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        reason = "needs the package reasoning-gym: pip install '.[reasoning-gym]' in a checkout"
        raise ConfigError("rlax.rewards", PACKAGE, reason)
    check_budget(config, context, "reasoning_gym")
