"""The ``rlax:`` section of a MaxText config: what every key means, its unit and its default.

Which *parts* are used is chosen by ``name``; the options beside a name are checked by that part's
own config class (see ``build``). Importing this module imports neither JAX nor MaxText.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rlax_plugin.errors import ConfigError

PositiveInt = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of every config class, also of a plug-in's: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NoOptions(Section):
    """Config class of a part without options."""


class Choice(BaseModel):
    """``name`` picks a registered part; every other key is an option of that part."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Rollouts(Section):
    """How completions are drawn."""

    engine: Choice = Field(
        default=Choice(name="jetstream"), description="rollout engine of the workers"
    )
    group_size: Annotated[int, Field(ge=1)] = Field(default=8, description="samples per prompt")
    groups_per_step: PositiveInt = Field(
        default=8,
        description="groups in one training batch; with rlax.batches.tokens, how many are expected "
        "to hold that many tokens: so many are drawn ahead",
    )
    max_prompt_tokens: PositiveInt = Field(default=16, description="longest prompt, tokens")
    max_new_tokens: PositiveInt = Field(
        default=16, description="longest completion, tokens, stop included"
    )
    temperature: Annotated[float, Field(ge=0)] = Field(
        default=1.0, description="sampling temperature"
    )
    top_k: Annotated[int, Field(ge=0)] = Field(
        default=0, description="0 keeps the whole vocabulary"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="1.0 keeps all")
    ignore_stop: bool = Field(default=False, description="always draw max_new_tokens (benchmarks)")
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


class Staleness(Section):
    """RLAX's two integers. (1, 1) is on-policy lockstep, (1, 2) one step off."""

    reload_every: PositiveInt = Field(
        default=1, description="j: workers reload once per j versions"
    )
    max_staleness: PositiveInt = Field(
        default=1, description="k: versions between the update's and a sample's oldest token"
    )

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

    sampler: Choice = Field(default=Choice(name="shuffled"), description="curation.sample")
    gates: tuple[Choice, ...] = Field(
        default=(), description="all must admit a group, in this order"
    )
    pass_rate_half_life: Annotated[float, Field(gt=0)] = Field(
        default=8.0, description="groups of one prompt after which an old outcome counts half"
    )
    pass_threshold: float = Field(
        default=0.5, description="a reward at or above it counts as a pass"
    )
    oversample: Annotated[float, Field(ge=1)] = Field(
        default=1.0, description="groups issued ahead per group needed; the surplus may go stale"
    )
    max_refill: PositiveInt = Field(
        default=8,
        description="times groups_per_step groups one step may issue before the run stops",
    )


def _perhaps_the_presets(value: Any) -> Any:
    """Options without a name are of the part that the preset has in this slot."""
    return {"name": "", **value} if isinstance(value, Mapping) else value


Slot = Annotated[Choice, BeforeValidator(_perhaps_the_presets)]


class KL(Section):
    """KL divergence to the reference policy; the estimators are J. Schulman's.

    With d = log pi - log pi_ref per token: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1
    (http://joschu.net/blog/kl-approx.html).
    """

    coefficient: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="beta, per nat; 0: no KL, and no reference policy is kept"
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3", description="of the divergence, from the log-probs of the tokens drawn"
    )
    placement: Literal["loss", "reward"] = Field(
        default="loss",
        description="loss: -beta K joins grad_2. reward: each token is paid -beta K, measured "
        "on the sampler's log-probs, before advantages are computed",
    )


class Overlong(Section):
    """DAPO's soft overlong punishment, added to rewards (https://arxiv.org/abs/2503.14476, eq. 13).

    penalty * -1 * clip((length - (max_tokens - buffer_tokens)) / buffer_tokens, 0, 1).
    """

    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="taken from the reward at max_tokens, in reward units; 0: off"
    )
    buffer_tokens: PositiveInt | None = Field(
        default=None, description="L_c; null: a fifth of max_tokens"
    )
    max_tokens: PositiveInt | None = Field(
        default=None, description="L_max; null takes rlax.rollouts.max_new_tokens"
    )


class Algorithm(Section):
    """What makes an algorithm: the slots, and numbers that all of them understand.

    A preset sets what it needs; what a config sets as well, wins. ``kl``, ``overlong`` and the
    options of a slot are merged key by key, those of a slot unless it names another part.
    """

    aggregation: Slot | None = Field(
        default=None, description="how the terms of tokens become one sum and one weight"
    )
    importance_weight: Slot = Field(
        default=Choice(name="one"), description="multiplies every term, without gradient"
    )
    advantage: Slot | None = Field(default=None, description="from rewards to advantages")
    grad_1: Slot | None = Field(default=None, description="the term that the advantage multiplies")
    grad_2: Slot = Field(default=Choice(name="none"), description="the term that is added to it")
    corrections: tuple[Choice, ...] = Field(
        default=(), description="factors for what sampler and trainer disagree on; multiplied"
    )
    old_policy: Literal["sampler", "reprefill", "proximal"] = Field(
        default="sampler",
        description="whose log-probs are pi_old: the sampler's own; those of its weights, computed "
        "again by the trainer; or those of the weights just before the batch's first update",
    )
    kl: KL = KL()
    entropy_coefficient: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=0.0, description="of the policy's entropy per token, per nat; 0: no bonus"
    )
    overlong: Overlong = Overlong()
    mask_truncated: bool = Field(
        default=False,
        description="samples cut at max_new_tokens do not train; their rewards still count",
    )


class Reference(Section):
    """The frozen policy that KL is measured to; kept only where ``kl.coefficient`` is above 0."""

    path: str = Field(
        default="",
        description="MaxText parameters; empty: what training started from, kept under "
        "<run_dir>/reference",
    )
    offload: bool = Field(default=False, description="keep it in host memory between steps")


class Objective(Algorithm):
    """A preset, and what is to differ from it."""

    preset: str = Field(default="grpo", description="the algorithm to start from")
    epochs: PositiveInt = Field(default=1, description="passes over one batch")
    mini_batches: PositiveInt = Field(
        default=1,
        description="updates per pass, each on as many rows; one RL step is epochs * mini_batches "
        "MaxText steps, and only its last weights are published",
    )
    reference: Reference = Reference()
    offload_old_policy: bool = Field(
        default=False, description="keep the copy that old_policy: reprefill needs in host memory"
    )
    allow_uncorrected: bool = Field(
        default=False,
        description="train on samples older than one version without any correction for it, or "
        "several times on one batch without a ratio",
    )

    @property
    def updates_per_step(self) -> int:
        """MaxText steps in one RL step."""
        return self.epochs * self.mini_batches


class Batches(Section):
    """How samples are laid out in a batch, and how many make one."""

    rows: Annotated[int, Field(ge=0)] = Field(
        default=0, description="rows of a batch; 0: one for each of groups_per_step * group_size"
    )
    sequences_per_row: PositiveInt = Field(
        default=1, description="samples in one row at most; above 1 they are packed"
    )
    tokens: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="completion tokens that make a batch, reached by its last group (Ring-lite's "
        "C3PO, https://arxiv.org/abs/2506.14731), or fewer if its rows are full; 0: "
        "groups_per_step groups make one",
    )


class Weights(Section):
    """The path of weights from the trainer to the workers."""

    store: Choice = Field(default=Choice(name="orbax"), description="how the bytes are kept")
    path: str = Field(
        default="", description="where; empty: <run_dir>/weights. Workers must reach it"
    )
    keep: PositiveInt = Field(
        default=2, description="newest versions kept; leased ones stay as well"
    )
    parameter_server: str = Field(
        default="embedded",
        description='"embedded", or host:port of a running rlax parameter-server',
    )


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
    problems: Annotated[int, Field(ge=0)] = Field(
        default=512, description="asked of the split; 0 turns evaluation off"
    )
    samples: PositiveInt = Field(default=16, description="completions per problem")
    k: tuple[PositiveInt, ...] = Field(default=(1, 8), description="k of pass@k")
    majority_k: tuple[PositiveInt, ...] = Field(
        default=(), description="k of majority@k: the answer most of k samples give is right"
    )
    bootstrap: PositiveInt = Field(default=2000, description="resamples for the 95 % interval")
    every: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="RL steps between evaluations while training goes on: a worker is kept at one "
        "version for each and draws for training again afterwards; 0: none",
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
            name: EvaluationSet.model_validate(own | given.model_dump(exclude_none=True))
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


class WarmStart(Section):
    """A supervised start by MaxText's ordinary loop, stopped inside a window of pass@1."""

    enabled: bool = Field(default=False, description="whether there is a warm start")
    steps: PositiveInt = Field(default=2000, description="supervised steps at most")
    batch_rows: PositiveInt = Field(default=256, description="examples per step")
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=2e-3, description="of the supervised steps, constant"
    )
    pass_at_1_from: float = Field(
        default=0.28, description="stop once validation pass@1 reaches this"
    )
    pass_at_1_to: float = Field(default=0.35, description="an error if it overshoots this")
    check_every: PositiveInt = Field(
        default=5, description="steps between looks at validation pass@1"
    )
    train_problems: Annotated[int, Field(ge=0)] = Field(
        default=0, description="learn from the first so many training problems; 0: from all"
    )
    problems: PositiveInt = Field(default=512, description="validation problems looked at")
    directory: str = Field(
        default="",
        description="of a finished warm start, which is used instead; empty: <run_dir>/warm_start",
    )


class Deadlines(Section):
    """Seconds. Nothing in a run waits without one of these."""

    startup_s: Seconds = Field(default=180.0, description="until the first worker is ready")
    heartbeat_s: Seconds = Field(default=2.0, description="between a worker's heartbeats")
    heartbeats_lost: PositiveInt = Field(
        default=3, description="missed heartbeats that make it lost"
    )
    rpc_s: Seconds = Field(default=10.0, description="any single control RPC")
    group_s: Seconds = Field(default=60.0, description="one group's generation")
    reward_s: Seconds = Field(default=10.0, description="one reward call")
    batch_s: Seconds = Field(default=300.0, description="the trainer's wait for a batch")
    weights_s: Seconds = Field(default=120.0, description="writing or pulling one weight version")
    lease_s: Seconds = Field(
        default=60.0, description="a reader's hold on a version before renewal"
    )
    drain_s: Seconds = Field(default=20.0, description="a worker's time to finish after SIGTERM")


class Network(Section):
    """Where endpoints listen. Beyond loopback TLS and a token are required."""

    host: str = Field(default="127.0.0.1", description="address the controller and workers bind")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="controller; 0: any free"
    )
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None,
        description="of the trainer's /metrics for Prometheus; 0: any free; null: none. Workers "
        "have rlax serve --prometheus-port",
    )

    @model_validator(mode="after")
    def _loopback(self) -> Network:
        if self.host not in ("127.0.0.1", "localhost"):
            raise ConfigError(
                "rlax.network.host",
                self.host,
                "must be a loopback address: TLS and tokens for other hosts are not built yet",
            )
        return self


class RlaxSection(Section):
    """The whole ``rlax:`` section."""

    plugins: tuple[str, ...] = Field(
        default=(),
        description="entry-point or module names of the plug-ins to load; nothing else is",
    )
    seed: int = Field(default=0, description="of prompts, samples and evaluation")
    deterministic: bool = Field(
        default=False,
        description="bit-identical runs, killed or not: lockstep, and each group decoded alone",
    )
    state_dir: str = Field(
        default="",
        description="local directory of the ledger, logs and lock; empty: the run's own, or one "
        "under XDG_STATE_HOME if the run is on an object store. Never on NFS",
    )
    prompt_source: Choice = Field(default=..., description="what is asked")
    rewards: tuple[Choice, ...] = Field(
        default=..., min_length=1, description="score every completion; summed"
    )
    reward_processes: PositiveInt = Field(default=1, description="processes of the reward pool")
    rollouts: Rollouts = Rollouts()
    staleness: Staleness = Staleness()
    curation: Curation = Curation()
    objective: Objective = Objective()
    batches: Batches = Batches()
    weights: Weights = Weights()
    evaluation: Evaluation = Evaluation()
    warm_start: WarmStart = WarmStart()
    launcher: Choice = Field(default=Choice(name="local"), description="brings the workers up")
    trackers: tuple[Choice, ...] = Field(default=(), description="get the metrics of every step")
    trainer: Choice = Field(default=Choice(name="maxtext"), description="runs the training loop")
    deadlines: Deadlines = Deadlines()
    network: Network = Network()
    allow_untested_maxtext: bool = Field(
        default=False, description="run although MaxText's source differs from what was tested"
    )

    @property
    def batch_rows(self) -> int:
        """Rows of one batch, over all of its mini-batches."""
        return self.batches.rows or self.rollouts.groups_per_step * self.rollouts.group_size

    @property
    def row_tokens(self) -> int:
        """Length of a row."""
        return self.rollouts.max_prompt_tokens + self.rollouts.max_new_tokens

    @model_validator(mode="after")
    def _batches_hold(self) -> RlaxSection:
        rows, updates = self.batch_rows, self.objective.mini_batches
        if rows % updates:
            raise ConfigError(
                "rlax.objective.mini_batches", updates, f"must divide the batch's {rows} rows"
            )
        self._check_rows(rows)
        return self

    def _check_rows(self, rows: int) -> None:
        group, groups = self.rollouts.group_size, self.rollouts.groups_per_step
        if rows < group:  # samples may be as long as a row
            raise ConfigError("rlax.batches.rows", rows, f"must be at least group_size = {group}")
        in_row = min(self.batches.sequences_per_row, self.row_tokens)
        samples = rows * in_row // group * group  # of whole groups
        if not self.batches.tokens and samples < groups * group:
            raise ConfigError(
                "rlax.batches.rows",
                rows,
                f"times sequences_per_row must hold groups_per_step * group_size = "
                f"{groups * group} samples",
            )
        most = min(samples * self.rollouts.max_new_tokens, rows * self.row_tokens)
        if self.batches.tokens > most:
            raise ConfigError(
                "rlax.batches.tokens",
                self.batches.tokens,
                f"must not exceed {most}, what {rows} rows can hold: raise rlax.batches.rows or "
                "sequences_per_row",
            )

    @model_validator(mode="after")
    def _can_be_deterministic(self) -> RlaxSection:
        if not self.deterministic:
            return self
        wanted = {
            "staleness.reload_every": (self.staleness.reload_every, 1),
            "staleness.max_staleness": (self.staleness.max_staleness, 1),
            "curation.oversample": (self.curation.oversample, 1.0),
            "rollouts.on_new_weights": (self.rollouts.on_new_weights, "finish"),
        }
        for key, (given, right) in wanted.items():
            if given != right:
                raise ConfigError(f"rlax.{key}", given, f"must be {right} with rlax.deterministic")
        if self.evaluation.every:
            reason = "must be 0 with rlax.deterministic: it takes a worker away from training"
            raise ConfigError("rlax.evaluation.every", self.evaluation.every, reason)
        if self.rollouts.slots < self.rollouts.group_size:
            reason = f"must hold a group of {self.rollouts.group_size} with rlax.deterministic"
            raise ConfigError("rlax.rollouts.slots", self.rollouts.slots, reason)
        return self
