"""The whole ``rlax:`` section, and the parts of it that concern processes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rlax_plugin.config.base import (
    Choice,
    DefaultPart,
    PathText,
    PositiveInt,
    Processes,
    Seconds,
    Section,
    is_address,
)
from rlax_plugin.config.evaluation import Evaluation
from rlax_plugin.config.objective import Objective
from rlax_plugin.config.rollouts import Batches, Curation, Rollouts, Staleness
from rlax_plugin.config.speeds import Assume
from rlax_plugin.errors import ConfigError


class Weights(Section):
    """The path of weights from the trainer to the workers."""

    store: Annotated[Choice, DefaultPart("orbax")] = Field(
        default=Choice(name="orbax"), description="how the bytes are kept"
    )
    path: PathText = Field(
        default="", description="where; empty: <run_dir>/weights. Workers must reach it"
    )
    keep: PositiveInt = Field(
        default=2, description="newest versions kept; leased ones stay as well"
    )
    parameter_server: str = Field(
        default="embedded",
        description='"embedded", or host:port of a running rlax parameter-server',
    )

    @model_validator(mode="after")
    def _reachable(self) -> Weights:
        server = self.parameter_server
        if server != "embedded" and not is_address(server):
            reason = "must be embedded, or host:port of a running rlax parameter-server"
            raise ConfigError("rlax.weights.parameter_server", server, reason)
        return self


class Deadlines(Section):
    """Seconds. Nothing in a run waits without one of these."""

    startup_s: Seconds = Field(
        default=180.0,
        description="until an engine is built and compiled, and again until the first worker holds "
        "weights",
    )
    heartbeat_s: Seconds = Field(default=2.0, description="between a worker's heartbeats")
    heartbeats_lost: PositiveInt = Field(
        default=3, description="missed heartbeats that make it lost"
    )
    rpc_s: Seconds = Field(default=10.0, description="any single control RPC")
    group_s: Seconds = Field(
        default=60.0,
        description="a group without progress for this long is sent to another worker; progress is "
        "a new token or, while the group waits, any token of its engine",
    )
    reward_s: Seconds = Field(default=10.0, description="one reward call")
    batch_s: Seconds = Field(default=300.0, description="the trainer's wait for a batch")
    weights_s: Seconds = Field(
        default=120.0,
        description="writing or pulling one weight version; also how long a store that "
        "fails is tried again",
    )
    lease_s: Seconds = Field(
        default=60.0,
        description="a reader's hold on a version before renewal; after a restart, old versions "
        "are kept this long for running readers",
    )
    drain_s: Seconds = Field(default=20.0, description="a worker's time to finish after SIGTERM")
    assume: Assume = Assume()

    @property
    def lost_s(self) -> float:
        """Silence after which a worker counts as lost."""
        return self.heartbeat_s * self.heartbeats_lost


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
        description="entry-point or module names of plug-ins to load on top of the built-in ones",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="of prompts, samples and evaluation"
    )
    deterministic: bool = Field(
        default=False,
        description="bit-identical runs, killed or not: lockstep, and each group decoded alone",
    )
    state_dir: PathText = Field(
        default="",
        description="local directory of the ledger, logs and lock; empty: the run's own, or one "
        "under XDG_STATE_HOME if the run is on an object store. Never on NFS",
    )
    prompt_source: Choice = Field(default=..., description="what is asked")
    rewards: tuple[Choice, ...] = Field(
        default=..., min_length=1, description="score every completion; summed"
    )
    reward_processes: Processes = Field(default=1, description="processes of the reward pool")
    rollouts: Rollouts = Rollouts()
    staleness: Staleness = Staleness()
    curation: Curation = Curation()
    objective: Objective = Objective()
    batches: Batches = Batches()
    weights: Weights = Weights()
    evaluation: Evaluation = Evaluation()
    launcher: Annotated[Choice, DefaultPart("local")] = Field(
        default=Choice(name="local"), description="brings the workers up"
    )
    trackers: tuple[Choice, ...] = Field(default=(), description="get the metrics of every step")
    observers: tuple[Choice, ...] = Field(
        default=(), description="receive the run's events; their state is saved with checkpoints"
    )
    trainer: Annotated[Choice, DefaultPart("maxtext")] = Field(
        default=Choice(name="maxtext"), description="runs the training loop"
    )
    deadlines: Deadlines = Deadlines()
    network: Network = Network()

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
