"""Held-out evaluation: sets, samples and measures."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from rlax_plugin.config.base import Choice, NonNegativeInt, PositiveInt, Section
from rlax_plugin.errors import ConfigError


class EvaluationSet(Section):
    """A further held-out set; what it leaves out is as in ``rlax.evaluation`` or in training."""

    prompt_source: Choice | None = Field(default=None, description="null: rlax.prompt_source")
    rewards: tuple[Choice, ...] = Field(default=(), description="empty: rlax.rewards")
    split: str | None = Field(default=None, description="null: as rlax.evaluation.split")
    problems: PositiveInt | None = Field(
        default=None, description="asked of the split; null: as rlax.evaluation.problems"
    )
    samples: PositiveInt | None = Field(
        default=None, description="completions per problem; null: as rlax.evaluation.samples"
    )


class Evaluation(Section):
    """Held-out evaluation before, while and after training, through the workers."""

    split: str = Field(default="test", description="of the prompt source: validation or test")
    problems: NonNegativeInt = Field(
        default=512, description="asked of the split; 0 turns evaluation off"
    )
    samples: PositiveInt = Field(default=16, description="completions per problem")
    k: tuple[PositiveInt, ...] = Field(default=(1, 8), description="k of pass@k")
    majority_k: tuple[PositiveInt, ...] = Field(
        default=(), description="k of majority@k: the answer most of k samples give is right"
    )
    bootstrap: PositiveInt = Field(default=2000, description="resamples for the 95 % interval")
    every: NonNegativeInt = Field(
        default=0,
        description="RL steps between evaluations while training goes on: a worker is kept at one "
        "version for each and generates for training again afterwards; 0: none",
    )
    sets: dict[str, EvaluationSet] = Field(
        default_factory=dict,
        description="further sets by name, evaluated together with the one above, which is called "
        "by its split",
    )

    def all_sets(self) -> dict[str, EvaluationSet]:
        """Every set by name, the main one first, with split, problems and samples filled in."""
        own = {"split": self.split, "problems": self.problems or 1, "samples": self.samples}
        further = {
            # Not model_dump: it would also leave out what is null in a part's own options.
            name: EvaluationSet.model_validate(own | {k: v for k, v in given if v is not None})
            for name, given in self.sets.items()
        }
        return {self.split: EvaluationSet.model_validate(own), **further}

    @property
    def most_samples(self) -> int:
        """Completions of one problem, at most."""
        return max(one.samples or 1 for one in self.all_sets().values())

    @model_validator(mode="after")
    def _can_be_measured(self) -> Evaluation:
        for name in self.sets:
            key = f"rlax.evaluation.sets.{name}"
            if name == self.split:
                raise ConfigError(key, None, "is what the main set is called, by its split: rename")
            if not re.fullmatch(r"\w+", name):
                raise ConfigError(key, None, "a set's name must be of letters, digits and _")
        if not self.problems:
            return self
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
        return self
