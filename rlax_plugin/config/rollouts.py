"""How samples are asked for, generated, chosen, and laid out in batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlax_plugin.config.base import (
    Choice,
    DefaultPart,
    NonNegativeInt,
    PositiveInt,
    Seconds,
    Section,
)
from rlax_plugin.errors import ConfigError


class Rollouts(Section):
    """How completions are generated."""

    engine: Annotated[Choice, DefaultPart("jetstream")] = Field(
        default=Choice(name="jetstream"), description="rollout engine of the workers"
    )
    group_size: PositiveInt = Field(default=8, description="samples per prompt")
    groups_per_step: PositiveInt = Field(
        default=8,
        description="groups in one training batch; with rlax.batches.tokens, how many are expected "
        "to hold that many tokens: so many are generated ahead",
    )
    max_prompt_tokens: PositiveInt = Field(default=16, description="longest prompt, tokens")
    max_new_tokens: PositiveInt = Field(
        default=16, description="longest completion, tokens, stop included"
    )
    temperature: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=1.0,
        description="sampling temperature, 0 (greedy) or at least 0.001; above 0 to train",
    )
    top_k: NonNegativeInt = Field(
        default=0,
        description="0 keeps the whole vocabulary, as training needs; rlax eval and rlax serve RUN "
        "may cut it",
    )
    top_p: Annotated[float, Field(ge=1e-6, le=1)] = Field(
        default=1.0, description="1.0 keeps all, as training needs; see top_k"
    )
    ignore_stop: bool = Field(
        default=False, description="always generate max_new_tokens (benchmarks)"
    )
    slots: PositiveInt = Field(default=64, description="sequences a worker decodes at once")
    on_new_weights: Literal["finish", "continue", "discard"] = Field(
        default="finish",
        description="running samples when weights arrive: finish them on the old ones, continue "
        "them on the new ones behind their tokens, or discard and restart them",
    )
    progress_s: Seconds = Field(
        default=1.0,
        description="between reports of unfinished samples, which another worker can resume; "
        "only with on_new_weights: continue",
    )

    @model_validator(mode="after")
    def _divides(self) -> Rollouts:
        if 0 < self.temperature < 1e-3:  # logits divided by it would not be finite
            reason = "must be 0, which is greedy, or at least 0.001"
            raise ConfigError("rlax.rollouts.temperature", self.temperature, reason)
        return self


class Staleness(Section):
    """RLAX's two integers. (1, 1) is on-policy lockstep, (1, 2) one step off."""

    reload_every: PositiveInt = Field(
        default=1, description="j: workers reload once per j versions"
    )
    max_staleness: PositiveInt = Field(
        default=1, description="k: versions between the update's and a sample's oldest token"
    )

    @property
    def steps_ahead(self) -> int:
        """Steps whose groups may be outstanding at once, that of the next batch included."""
        return self.max_staleness - self.reload_every + 1

    @model_validator(mode="after")
    def _reachable(self) -> Staleness:
        if self.max_staleness < self.reload_every:
            raise ConfigError(
                "rlax.staleness.max_staleness",
                self.max_staleness,
                f"must be at least reload_every = {self.reload_every}, because a worker that "
                "reloads once per that many versions serves samples that old",
            )
        return self


class Curation(Section):
    """Which prompts are asked and which groups train."""

    sampler: Annotated[Choice, DefaultPart("shuffled")] = Field(
        default=Choice(name="shuffled"), description="curation.sample"
    )
    filters: tuple[Choice, ...] = Field(
        default=(), description="all must accept a group, in this order"
    )
    pass_rate_half_life: Annotated[float, Field(gt=0)] = Field(
        default=8.0, description="groups of one prompt after which an old outcome counts half"
    )
    pass_threshold: float = Field(
        default=0.5, description="a reward at or above it counts as a pass"
    )
    oversample: Annotated[float, Field(ge=1, le=1000)] = Field(
        default=1.0, description="groups issued ahead per group needed; the surplus may go stale"
    )
    max_refill: PositiveInt = Field(
        default=8,
        description="times groups_per_step groups one step may issue before the run stops",
    )


class Batches(Section):
    """How samples are laid out in a batch, and how many make one."""

    rows: NonNegativeInt = Field(
        default=0, description="rows of a batch; 0: one for each of groups_per_step * group_size"
    )
    sequences_per_row: PositiveInt = Field(
        default=1, description="samples in one row at most; above 1 they are packed"
    )
    tokens: NonNegativeInt = Field(
        default=0,
        description="completion tokens that make a batch, reached by its last group (Ring-lite's "
        "C3PO, https://arxiv.org/abs/2506.14731), or fewer if its rows are full; 0: "
        "groups_per_step groups make one",
    )
