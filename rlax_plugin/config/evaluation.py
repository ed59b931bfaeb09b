"""Held-out evaluation: sets, samples and measures."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import hidden_character
from rlax_plugin.config.base import (
    Choice,
    NonNegativeInt,
    PositiveInt,
    RewardChoice,
    Section,
    Temperature,
)
from rlax_plugin.config.schedules import Schedule


class EvaluationSet(Section):
    """One further evaluation set. NAME stands for the name that you give it."""

    prompt_source: Choice | None = Field(
        default=None, description="prompt dataset of this set; null: rlax.prompt_source"
    )
    rewards: tuple[RewardChoice, ...] = Field(
        default=(), description="rewards of this set, with their weights; empty: rlax.rewards"
    )
    split: str | None = Field(
        default=None, description="split of its prompt dataset; null: rlax.evaluation.split"
    )
    problems: PositiveInt | None = Field(
        default=None, description="number of problems; null: rlax.evaluation.problems"
    )
    samples: PositiveInt | None = Field(
        default=None, description="number of completions per problem; null: rlax.evaluation.samples"
    )

    @field_validator("rewards")
    @classmethod
    def _constant(cls, rewards: tuple[RewardChoice, ...]) -> tuple[RewardChoice, ...]:
        if any(isinstance(choice.weight, Schedule) for choice in rewards):
            raise ValueError("must have numbers as weights: an evaluation has no step")
        return rewards


class Evaluation(Section):
    """Evaluation on held-out problems, on the workers.

    It runs before and after training, and every ``every`` steps during training.
    """

    split: str = Field(
        default="test", description="split of the prompt dataset to evaluate on: validation or test"
    )
    problems: NonNegativeInt = Field(
        default=512,
        description="number of problems of the split that are evaluated; 0: no evaluation",
    )
    samples: PositiveInt = Field(default=16, description="number of completions per problem")
    k: tuple[PositiveInt, ...] = Field(default=(1, 8), description="values of k for pass@k")
    majority_k: tuple[PositiveInt, ...] = Field(
        default=(),
        description="values of k for majority@k, the share of problems for which the most "
        "frequent answer of k samples is right",
    )
    temperature: Temperature | None = Field(
        default=None,
        description="sampling temperature of all sets, at least 0.001; 0: greedy decoding; null: "
        "rlax.rollouts.temperature, or the last value of its schedule",
    )
    bootstrap: PositiveInt = Field(
        default=2000, description="number of bootstrap resamples for the 95 % confidence intervals"
    )
    every: NonNegativeInt = Field(
        default=0,
        description="number of RL steps between evaluations during training; 0: none during "
        "training. For each evaluation one worker keeps a fixed version; it does not "
        "generate for training until the evaluation ends",
    )
    sets: dict[str, EvaluationSet] = Field(
        default_factory=dict,
        description="further evaluation sets by name. They are evaluated together with the main "
        "set, whose name is its split",
    )

    def all_sets(self) -> dict[str, EvaluationSet]:
        """Returns every set by name, the main one first, with defaults filled in."""
        own = {"split": self.split, "problems": self.problems or 1, "samples": self.samples}
        further = {
            # Not model_dump: it would also leave out what is null in a part's own options.
            name: EvaluationSet.model_validate(own | {k: v for k, v in given if v is not None})
            for name, given in self.sets.items()
        }
        return {self.split: EvaluationSet.model_validate(own), **further}

    @property
    def most_samples(self) -> int:
        """Maximum number of completions of one problem."""
        return max(one.samples or 1 for one in self.all_sets().values())

    @property
    def fewest_samples(self) -> int | None:
        """Minimum number of completions of one problem; None if evaluation is off."""
        sets = self.all_sets().values() if self.problems else ()
        return min((one.samples or 1 for one in sets), default=None)

    def check_together(self) -> None:
        for name in self.sets:
            key = f"rlax.evaluation.sets.{name}"
            if name == self.split:
                raise ConfigError(
                    key, None, "is the name of the main set, its split: choose another"
                )
            hidden = hidden_character(name)
            if hidden or not re.fullmatch(r"\w+", name):
                reason = "the name of a set must consist of letters, digits and _"
                raise ConfigError(key, None, f"{reason}; it has {hidden}" if hidden else reason)
        if not self.problems:
            return
        for name, one in self.all_sets().items():
            for kind in ("k", "majority_k"):
                k, n = max(getattr(self, kind), default=0), one.samples or 1
                if k > n:
                    where = "" if name == self.split else f"sets.{name}."
                    raise ConfigError(
                        f"rlax.evaluation.{kind}",
                        k,
                        f"must be at most rlax.evaluation.{where}samples = {n}",
                    )
