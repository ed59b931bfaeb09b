"""Config of requesting, generating and choosing samples, and of their layout in batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.base import (
    Choice,
    DefaultPart,
    FunctionChoice,
    NonNegativeInt,
    PathText,
    PositiveInt,
    Seconds,
    Section,
    SelectionChoice,
    Temperature,
)
from rlax_plugin.config.schedules import Schedule, Scheduled, last_of, lowest, value_at


class Rollouts(Section):
    """Generation of completions."""

    engine: Annotated[Choice, DefaultPart("jetstream")] = Field(
        default=Choice(name="jetstream"),
        description="rollout engine that generates completions in the workers",
    )
    group_size: PositiveInt = Field(default=8, description="number of samples per prompt")
    groups_per_step: PositiveInt = Field(
        default=8,
        description="number of groups in one training batch. With rlax.batches.tokens, your "
        "estimate of how many groups have that many tokens; it decides how many "
        "groups are generated ahead",
    )
    max_prompt_tokens: PositiveInt = Field(
        default=16, description="maximum length of a prompt, in tokens"
    )
    max_new_tokens: PositiveInt = Field(
        default=16,
        description="maximum length of a completion, or of one answer in an episode of several "
        "turns, in tokens, including the stop token",
    )
    temperature: Scheduled[Temperature] = Field(
        default=1.0,
        description="sampling temperature, at least 0.001; or 0, which means greedy decoding and "
        "is not allowed in training. With a schedule, all samples of a group have the temperature "
        "of one step, that of the oldest weights that may generate them",
    )
    top_k: NonNegativeInt = Field(
        default=0,
        description="sample from this number of most probable tokens; 0: from all. Training "
        "requires 0; rlax eval and rlax serve RUN accept other values",
    )
    top_p: Annotated[float, Field(ge=1e-6, le=1)] = Field(
        default=1.0,
        description="sample from the most probable tokens whose probabilities add up to this; "
        "1.0: from all. Training requires 1.0; rlax eval and rlax serve RUN accept "
        "other values",
    )
    ignore_stop: bool = Field(
        default=False,
        description="true: ignore stop tokens and always generate max_new_tokens tokens, for "
        "benchmarks",
    )
    slots: PositiveInt = Field(
        default=64, description="number of sequences that one worker decodes at once"
    )
    on_new_weights: Literal["finish", "continue", "discard"] = Field(
        default="finish",
        description="treatment of unfinished samples when new weights arrive. finish: they are "
        "completed with the old weights; continue: their remaining tokens are "
        "generated with the new weights; discard: they are generated again from the "
        "start",
    )
    order: Literal["longest_first", "issued"] = Field(
        default="longest_first",
        description="order in which groups are sent to workers, among those that may be generated "
        "by the same weights. longest_first: those whose prompts have had the longest completions, "
        "so that no long one is left at the end of a step; issued: as they were issued, as "
        "rlax.deterministic always does. Batches take groups as they were issued in any case",
    )
    progress_s: Seconds = Field(
        default=1.0,
        description="time between reports of unfinished samples, from which another worker can "
        "resume them; used only with on_new_weights: continue",
    )

    @field_validator("temperature")
    @classmethod
    def _never_greedy(cls, temperature: Scheduled[float]) -> Scheduled[float]:
        if isinstance(temperature, Schedule) and lowest(temperature) == 0:
            raise ValueError("a schedule must not have the temperature 0, which is greedy decoding")
        return temperature

    def temperature_at(self, step: int) -> float:
        """Returns the temperature of the groups of an RL step, see ``run.state.run_state.Open``."""
        return value_at(self.temperature, step)

    @property
    def last_temperature(self) -> float:
        """The temperature in the end, which counts where nothing is trained."""
        return last_of(self.temperature)

    @property
    def only_temperature(self) -> float | None:
        """The temperature of all samples; None with a schedule: each group records its own."""
        return None if isinstance(self.temperature, Schedule) else self.temperature


class Episodes(Section):
    """Limits of an episode of several turns; without effect with single_turn.

    An episode that reaches a limit is ended there, and scored.
    """

    max_turns: PositiveInt = Field(
        default=8, description="number of answers of the policy in one episode at most"
    )
    max_tokens: NonNegativeInt = Field(
        default=0,
        description="number of tokens after the prompt in one trajectory at most: the policy's "
        "answers, and what the environment gives; 0: rlax.rollouts.max_new_tokens. A row of a "
        "batch has max_prompt_tokens and these",
    )
    max_trajectories: NonNegativeInt = Field(
        default=0,
        description="number of trajectories in one episode at most, each of which takes a row "
        "unless rows are packed; 0: as many as always fit, the rows of a batch divided by "
        "rlax.rollouts.group_size",
    )


class Staleness(Section):
    """Limits of the age of samples.

    RLAX (https://arxiv.org/abs/2512.06392) calls the two numbers j and k. With (j, k) = (1, 1)
    training is on-policy. With (1, 2) samples may be one version older.
    """

    reload_every: PositiveInt = Field(
        default=1, description="j: a worker loads new weights once per this many versions"
    )
    max_staleness: PositiveInt = Field(
        default=1,
        description="k: largest allowed staleness of a sample: the number of the weight version "
        "that its update makes, minus the number of the version that generated its oldest token. "
        "A sample of the current weights has 1, because the update makes the next version",
    )

    @property
    def steps_ahead(self) -> int:
        """Number of steps whose groups may be outstanding at once, including the next batch's."""
        return self.max_staleness - self.reload_every + 1

    def check_together(self) -> None:
        if self.max_staleness < self.reload_every:
            raise ConfigError(
                "rlax.staleness.max_staleness",
                self.max_staleness,
                f"must be at least reload_every = {self.reload_every}, because a worker that "
                "reloads once per that many versions generates samples that old",
            )


class Prior(Section):
    """Pass rates that were measured before the run, by `rlax eval` or by another run.

    They count like samples of the run's first policy version. A run keeps a copy of them and reads
    the file only when it begins.
    """

    path: PathText = Field(
        default="",
        description="Parquet file with pass rates: of rlax eval, or a snapshot of another run, "
        "such as controller/00000006.pass_rates.parquet; empty: none",
    )
    weight: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="a sample of the file counts as much as this share of a sample of the run; "
        "below 1 if the file measured another policy",
    )
    any_sampling: bool = Field(
        default=False,
        description="true: the file may have other sampling settings or another pass_threshold "
        "than this run; false: that is an error",
    )


class Guard(Section):
    """Limits for the share of groups that the filters keep.

    The share is computed over the last `window` scored groups, and checked once there are that
    many. The count starts from 0 in each process, so also after a resume.
    """

    window: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=256, description="number of scored groups over which the share is counted"
    )
    warn: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1,
        description="if a smaller share of the groups is kept, the run prints a warning with the "
        "reasons; it warns again after the share has risen to 1.5 times this value. 0: never",
    )
    stop: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.02,
        description="if a smaller share of the groups is kept, the run ends with an error that "
        "counts the reasons. The run can be resumed with a smaller value. 0: never",
    )

    def check_together(self) -> None:
        if self.warn and self.stop > self.warn:
            raise ConfigError(
                "rlax.curation.guard.stop", self.stop, f"must not exceed warn = {self.warn}"
            )


class Screening(Section):
    """Groups in two phases, to spend fewer samples on prompts without a gradient.

    The first samples of a group are generated and scored. If their rewards are all equal, and the
    group is unlikely to become mixed, it is rejected, and its other samples are not generated.
    Otherwise they are generated, and the whole group is used as without screening. This is biased:
    prompts that nearly always pass or fail count less, see docs/curation.md.
    """

    pilots: NonNegativeInt = Field(
        default=0,
        description="number of samples of a group that are generated first, below group_size; 0: "
        "all samples are generated at once",
    )
    min_mixed_probability: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5,
        description="if the rewards of the first samples are all equal, the others are generated "
        "only if the group becomes mixed with at least this probability, by the prompt's pass "
        "rates when it was issued and by its first samples. 1: never (SPEED-RL, "
        "https://arxiv.org/abs/2506.09016)",
    )


class Stage(Section):
    """A part of the run in which the domains have other weights than in the data set.

    It ends at `until_step` or `until_pass_rate`, whichever comes first. Only the last stage may
    have neither, and then lasts to the end of the run.
    """

    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(
        description="weights of the domains, relative to each other; of domains that are left out "
        "no prompt is chosen"
    )
    until_step: PositiveInt | None = Field(
        default=None,
        description="the stage ends when this step's batch is complete. Prompts that were chosen "
        "ahead for later steps are still of this stage",
    )
    until_pass_rate: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default={},
        description="the stage ends when the mean pass rate of each of these domains, over all its "
        "measured prompts, is at least this value",
    )
    min_prompts: PositiveInt = Field(
        default=64,
        description="until_pass_rate does not hold before so many prompts of each of its domains "
        "are measured, or all if there are fewer",
    )

    @property
    def ends(self) -> bool:
        """True if the stage has an end."""
        return self.until_step is not None or bool(self.until_pass_rate)


class Curation(Section):
    """The choice of prompts, and of groups for training."""

    sampler: Annotated[Choice, DefaultPart("shuffled")] = Field(
        default=Choice(name="shuffled"), description="sampler that chooses the next prompts"
    )
    stages: tuple[Stage, ...] = Field(
        default=(),
        description="weights of the domains that change during the run, for every sampler: one "
        "stage after the other, none of which comes back. After the last one, if it ends, the "
        "weights are those of the data set",
    )
    filters: tuple[FunctionChoice, ...] = Field(
        default=(),
        description="filters that accept or reject each scored group, in this order; a group is "
        "used for training only if all of them accept it. function: FILE.py:NAME, in place of "
        "name, is a function",
    )
    selection: SelectionChoice | None = Field(
        default=None,
        description="selection that decides which samples of a batch train, and how often, once "
        "the batch has its advantages. Beside its options, it has samples: a batch has this many "
        "rows for each of its groups (0: group_size, the default). null: every sample trains once",
    )
    only: PathText | None = Field(
        default=None,
        description="Parquet file of rlax curate: only the prompts that it keeps are used for "
        "training; null: all prompts of rlax.prompt_source",
    )
    pass_rate_half_life: Annotated[float, Field(gt=0)] = Field(
        default=32.0,
        description="number of policy versions after which a sample counts half in the pass rate "
        "of its prompt, because the policy has changed since",
    )
    prior_samples: Annotated[float, Field(gt=0)] = Field(
        default=2.0,
        description="weight of the prior pass rate of a prompt, as a number of samples. With 2 and "
        "prior_rate 1/2 all pass rates are equally probable",
    )
    prior_rate: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.5, description="prior pass rate of a prompt before it is measured"
    )
    prior: Prior = Prior()
    pass_threshold: float = Field(default=0.5, description="smallest reward that counts as a pass")
    oversample: Annotated[float, Field(ge=1, le=1000)] = Field(
        default=1.0,
        description="factor by which more groups are issued ahead than batches need, to replace "
        "rejected groups. Groups that are not needed at once wait, and may become too "
        "stale to be used; the generation of those that were begun with too old weights is "
        "cancelled as soon as a batch is complete without them. Deterministic mode allows only 1, "
        "and cancels nothing, because its batches wait for all groups that were issued",
    )
    max_refill: PositiveInt = Field(
        default=8,
        description="limit for the number of groups issued for one step, as a multiple of "
        "groups_per_step; a step that needs more groups, because too many are "
        "rejected, stops the run",
    )
    screening: Screening = Field(
        default=Screening(),
        description="generation of groups in two phases, the second only where it is likely to be "
        "of use",
    )
    guard: Guard = Field(
        default=Guard(), description="limits for the share of groups that the filters keep"
    )

    def check_together(self) -> None:
        step = 0
        for number, stage in enumerate(self.stages):
            key = f"rlax.curation.stages.{number}"
            if not any(stage.weights.values()):
                raise ConfigError(f"{key}.weights", dict(stage.weights), "must not all be 0")
            if not stage.ends and number < len(self.stages) - 1:
                reason = "needs until_step or until_pass_rate: only the last stage may lack both"
                raise ConfigError(key, None, reason)
            if stage.until_step is not None:
                if stage.until_step <= step:
                    reason = f"must be more than {step}, where an earlier stage ends"
                    raise ConfigError(f"{key}.until_step", stage.until_step, reason)
                step = stage.until_step


MOST_ANSWERS = 2**15 - 1  # their number shares an int32 with that of the prompt


class Batches(Section):
    """Size of a batch, and the layout of samples in it."""

    rows: NonNegativeInt = Field(
        default=0,
        description="number of rows in a batch; 0: groups_per_step * group_size, one row per "
        "sample, or * rlax.curation.selection.samples; with shared_prompts as many as these "
        "groups need",
    )
    sequences_per_row: PositiveInt = Field(
        default=1, description="maximum number of samples in one row; above 1, samples are packed"
    )
    shared_prompts: bool = Field(
        default=False,
        description="true: samples of a group that are in the same row share their prompt, which "
        "the trainer computes once for all of them. Requires sequences_per_row above 1, and "
        "attention: dot_product. A row then has max_prompt_tokens + sequences_per_row * "
        "max_new_tokens positions",
    )
    tokens: NonNegativeInt = Field(
        default=0,
        description="number of completion tokens in a batch: a batch takes groups until they have "
        "this many tokens or its rows are full (C3PO of Ring-lite, "
        "https://arxiv.org/abs/2506.14731). 0: a batch takes groups_per_step groups",
    )
    look_ahead: PositiveInt = Field(
        default=1,
        description="number of batches among whose groups, in issue order, a batch takes the first "
        "that are finished. 1: it waits for each older group. Above 1 it passes over unfinished "
        "ones, which prefers short answers and fast episodes: compare length/trained_mean with "
        "length/issued_mean. It needs groups beyond those of the next batch, so max_staleness "
        "above reload_every, or rlax.curation.oversample",
    )

    def check_together(self) -> None:
        in_row = self.sequences_per_row
        if self.shared_prompts and not 1 < in_row <= MOST_ANSWERS:
            raise ConfigError(
                "rlax.batches.sequences_per_row",
                in_row,
                f"must be from 2 to {MOST_ANSWERS} with shared_prompts, such as "
                "rlax.rollouts.group_size",
            )
