"""The whole ``rlax:`` section, and the parts of it that concern processes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import Field, field_validator

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.config.base import (
    Choice,
    DefaultPart,
    EnvironmentChoice,
    FunctionChoice,
    PathText,
    PositiveInt,
    Processes,
    RewardChoice,
    Seconds,
    Section,
    check_labels,
)
from rlax_plugin.config.environments import OwnEnvironment
from rlax_plugin.config.evaluation import Evaluation
from rlax_plugin.config.network import Network
from rlax_plugin.config.objective import Objective
from rlax_plugin.config.rollouts import Batches, Curation, Episodes, Rollouts, Staleness
from rlax_plugin.config.weights import Weights

Rate = Annotated[float, Field(gt=0)]


class Assume(Section):
    """Speeds from which rlax check estimates whether deadlines suffice.

    A run uses the speeds that it measures instead.
    """

    tokens_per_s: Rate = Field(
        default=20.0, description="tokens per second of one sequence while a worker decodes"
    )
    prefill_tokens_per_s: Rate = Field(
        default=5000.0, description="prompt tokens per second that a worker prefills"
    )
    bytes_per_s: Rate = Field(
        default=2e8, description="bytes per second when a weight version is written or read"
    )
    startup_s: Seconds = Field(
        default=60.0, description="time until a worker has imported and compiled its model"
    )


class LoggedSamples(Section):
    """Samples to train on in place of rollouts: offline, with a log that does not grow.

    Groups are taken in the order of the log, and from its beginning again once all were taken.
    """

    path: PathText = Field(
        default="",
        description="directory of another run, or a Parquet table (docs/your_demonstrations.md); a "
        "relative path is relative to the config. Empty: the run generates its samples",
    )
    min_reward: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None, description="smallest reward of a sample that is kept; null: all are"
    )
    keep: Literal["all", "best"] = Field(
        default="all",
        description="best: of each group only the sample with the highest reward, the first of "
        "several",
    )


class Retention(Section):
    """Retention of a run's records.

    Records that the two newest checkpoints need are never removed, so a run can always be resumed.
    """

    samples_steps: PositiveInt | None = Field(
        default=None,
        description="number of newest steps whose samples are kept; older ones are removed at the "
        "next checkpoint. null: all are kept",
    )


SINGLE_TURN = "single_turn"


class Deadlines(Section):
    """Time limits in seconds; every operation that a run waits for has one."""

    startup_s: Seconds = Field(
        default=180.0,
        description="three limits of this length: for a worker, from its start, to build its "
        "engine and compile its programs; for the controller to wait for the first worker that has "
        "loaded weights; and for the process that renders chat templates to start",
    )
    heartbeat_s: Seconds = Field(default=2.0, description="time between two heartbeats of a worker")
    heartbeats_lost: PositiveInt = Field(
        default=3, description="number of missed heartbeats after which a worker is lost"
    )
    prompts_s: Seconds = Field(
        default=120.0,
        description="time without progress after which preparing a data set of prompts fails, and "
        "limit for reading logged samples",
    )
    template_s: Seconds = Field(
        default=10.0,
        description="limit for the model's chat template to render one conversation, and for the "
        "tokenizer to encode it; many conversations together have six times as long",
    )
    rpc_s: Seconds = Field(
        default=10.0,
        description="limit for a single control RPC, and for each 4 MiB of the requests of a call",
    )
    group_s: Seconds = Field(
        default=60.0,
        description="time without progress after which a group is sent to another worker. "
        "Progress means a new token of the group or, while the group waits for a "
        "slot, any new token of its engine",
    )
    reward_s: Seconds = Field(
        default=10.0,
        description="limit for all rewards of one sample together; a reward that sees the whole "
        "group has this much time for each of its samples",
    )
    episode_s: Seconds = Field(
        default=120.0,
        description="limit for the time that an environment takes over one episode, besides the "
        "time in which the policy answers it",
    )
    batch_s: Seconds = Field(default=300.0, description="limit for the trainer's wait for a batch")
    weights_s: Seconds = Field(
        default=120.0,
        description="limit for writing, receiving or loading one weight version; a store that "
        "fails, and a parameter server that cannot be reached, are retried for this long",
    )
    lease_s: Seconds = Field(
        default=60.0,
        description="time after which a worker's claim (lease) on a version ends unless the "
        "worker renews it; after a restart of the trainer, the versions of the earlier "
        "process are kept this long after the first new one is published",
    )
    host_s: Seconds = Field(
        default=60.0,
        description="time without a sign of life after which a host of a trainer over several "
        "hosts is lost, and the other hosts end; also the time for which they try to reach host 0",
    )
    drain_s: Seconds = Field(
        default=20.0, description="limit for finishing open work after a worker receives SIGTERM"
    )
    close_s: Seconds = Field(
        default=60.0,
        description="limit for all trackers together to close when a run ends, and another one for "
        "the deletions of weight versions that are under way then; what is late is abandoned",
    )
    assume: Assume = Assume()

    @property
    def lost_s(self) -> float:
        """Seconds without a heartbeat after which a worker counts as lost."""
        return self.heartbeat_s * self.heartbeats_lost


class RlaxSection(Section):
    """The keys directly below ``rlax:``; the sections below it follow."""

    plugins: tuple[str, ...] = Field(
        default=(),
        description="plug-ins to load besides the built-in ones: names of entry points or modules",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="random seed of the prompt order, of sampling and of evaluation"
    )
    deterministic: bool = Field(
        default=False,
        description="true: make runs reproducible bit for bit on CPU, even if they are killed and "
        "resumed. This requires on-policy training (reload_every and max_staleness "
        "1) and decodes each group alone, which is slower",
    )
    state_dir: PathText = Field(
        default="",
        description="local directory of the ledger (a database of the run's events), the logs and "
        "the lock file; it must not be on NFS. Empty: the run's directory or, if the "
        "run is on an object store, a directory under XDG_STATE_HOME",
    )
    prompt_source: Choice = Field(default=..., description="prompt dataset to train on")
    rewards: tuple[RewardChoice, ...] = Field(
        default=...,
        description="rewards that score every completion. function: FILE.py:NAME, in place of "
        "name, is a function. Beside its options, each has a weight, "
        "a number from -1e6 to 1e6 (1 unless given): the reward of a sample is the sum of "
        "weight * value. A reward "
        "with weight 0 is only recorded. label is its name in metrics and messages. The list may "
        "be empty if an environment of several turns gives the rewards",
    )
    functions: dict[str, str] = Field(
        default_factory=dict,
        description="SHA-256 of the files whose functions are rewards or filters, as the config "
        "names them; rlax train writes it into the config that a run keeps",
    )
    reward_limit: Annotated[float, Field(gt=0, le=1e9)] = Field(
        default=1e6,
        description="largest absolute value that a reward may return for a sample or for a token, "
        "and an environment for a turn, before weights. A sample for which one returns more is "
        "unscored, with an error that names it",
    )
    reward_processes: Processes = Field(
        default=1, description="number of processes that compute rewards"
    )
    environment: Annotated[EnvironmentChoice, DefaultPart(SINGLE_TURN)] = Field(
        default=EnvironmentChoice(name=SINGLE_TURN),
        description="environment that reacts to the policy's answers. single_turn: the first "
        "answer is scored; other environments call tools, for example, and request another turn",
    )
    episodes: Episodes = Episodes()
    reward_concurrency: PositiveInt = Field(
        default=32,
        description="number of samples that async rewards score at the same time in one process; "
        "other rewards score one at a time",
    )
    rollouts: Rollouts = Rollouts()
    staleness: Staleness = Staleness()
    logged_samples: LoggedSamples = LoggedSamples()
    curation: Curation = Curation()
    objective: Objective = Objective()
    batches: Batches = Batches()
    weights: Weights = Weights()
    evaluation: Evaluation = Evaluation()
    environments: dict[str, OwnEnvironment] = Field(
        default_factory=dict,
        description="several environments that train in one run, by name (docs/environments.md). "
        "Each has a prompt_source, so rlax.prompt_source is left out; empty: there is one",
    )
    launcher: Annotated[Choice, DefaultPart("local")] = Field(
        default=Choice(name="local"), description="launcher that starts the worker processes"
    )
    trackers: tuple[Choice, ...] = Field(
        default=(), description="trackers that receive the metrics of every step, such as wandb"
    )
    observers: tuple[Choice, ...] = Field(
        default=(),
        description="observers that receive the events of the run, such as scored groups; their "
        "state is saved with checkpoints",
    )
    trainer: Annotated[Choice, DefaultPart("maxtext")] = Field(
        default=Choice(name="maxtext"), description="implementation of the training loop"
    )
    signals: tuple[Choice, ...] = Field(
        default=(),
        description="signals that the trainer adds to each batch, such as the values of a critic, "
        "in the order in which they run. Those that the objective needs, such as the reference "
        "policy of a KL term, need not be listed, and run first",
    )
    retention: Retention = Retention()
    deadlines: Deadlines = Deadlines()
    network: Network = Network()

    @field_validator("environments")
    @classmethod
    def _named(cls, found: dict[str, OwnEnvironment]) -> dict[str, OwnEnvironment]:
        for name in found:
            if not re.fullmatch(r"[A-Za-z0-9_]{1,64}", name):
                reason = "the name of an environment must be 1 to 64 letters a to z, digits and _"
                raise ConfigError(f"rlax.environments.{harmless(name)}", None, reason)
        return dict(sorted(found.items()))  # a mapping of YAML has no order that is kept

    @field_validator("signals")
    @classmethod
    def _different(cls, signals: tuple[Choice, ...]) -> tuple[Choice, ...]:
        names = [choice.plain_name for choice in signals]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError("rlax.signals", names, f"must name {name!r} once")
        return signals

    @property
    def trains_on_log(self) -> bool:
        """True if the samples that train were recorded before the run."""
        return bool(self.logged_samples.path)

    @property
    def needs_no_workers(self) -> bool:
        """True if neither training nor an evaluation generates samples."""
        return self.trains_on_log and not self.evaluation.problems

    def of_environment(self, name: str) -> RlaxSection:
        """Returns the section of a run with this environment alone; "": the section itself."""
        if not name:
            return self
        own = self.environments[name].over(self)
        return self.model_copy(update={**own, "environments": {}})

    @property
    def by_environment(self) -> dict[str, RlaxSection]:
        """Name -> section of each environment; "" if there is one."""
        return {name: self.of_environment(name) for name in self.environments or ("",)}

    def key_of(self, name: str, key: str) -> str:
        """Returns the key that sets ``rlax.<key>`` for an environment."""
        own, (first, *rest) = self.environments.get(name), key.split(".")
        its = getattr(own, first, None)
        if own is None or its is None:
            return f"rlax.{key}"
        if isinstance(its, Section) and (not rest or rest[0] not in own.given(first)):
            return f"rlax.{key}"  # each key of such a section may be inherited
        return f"rlax.environments.{name}.{key}"

    def own_key(self, name: str, key: str) -> str:
        """Returns ``key_of`` for a whole dotted key, which may be one of MaxText's."""
        return self.key_of(name, key[5:]) if key.startswith("rlax.") else key

    @contextmanager
    def keys_of(self, name: str) -> Iterator[None]:
        """Names the key that sets it for an environment in each ``ConfigError`` within."""
        try:
            yield
        except ConfigError as error:
            if (key := self.own_key(name, error.key)) == error.key:
                raise
            raise ConfigError(key, error.value, error.reason, error.others) from None

    def check_one_environment(self, what: str) -> None:
        """Checks that there are not several environments, for a command about one.

        Args:
          what: the command, such as ``rlax prompts``.

        Raises:
          ConfigError: there are several.
        """
        if self.environments:
            reason = (
                f"{what} takes one environment: give it a config with the keys of one of these "
                "directly below rlax"
            )
            raise ConfigError("rlax.environments", [*self.environments], reason)

    def environment_of(self, prompt_id: str) -> str:
        """Returns the name of a training prompt's environment; "" if there is one."""
        return prompt_id.partition("/")[0] if self.environments else ""

    def own_id(self, prompt_id: str) -> str:
        """Returns the id that a training prompt has in its source, and in evaluations."""
        return prompt_id.partition("/")[2] if self.environments else prompt_id

    @property
    def batch_rows(self) -> int:
        """Number of rows of one batch, over all of its mini-batches."""
        return self.batches.rows or self.rollouts.groups_per_step * self._rows_of_group

    @property
    def _rows_of_group(self) -> int:
        """Number of rows that hold any one group of one-turn episodes."""
        size, batches = self.samples_selected, self.batches
        return math.ceil(size / batches.sequences_per_row) if batches.shared_prompts else size

    @property
    def samples_selected(self) -> int:
        """Number of rows of a batch for each of its groups; repeated samples count again."""
        selection = self.curation.selection
        return (selection.samples if selection else 0) or self.rollouts.group_size

    @property
    def several_turns(self) -> bool:
        """True if the environment may continue after the first answer."""
        if self.environments:
            return any(one.several_turns for one in self.by_environment.values())
        return self.environment.plain_name != SINGLE_TURN

    @property
    def episode_tokens(self) -> int:
        """Maximum number of tokens of a trajectory after its prompt, given and sampled."""
        if self.environments:
            return max(one.episode_tokens for one in self.by_environment.values())
        one = self.rollouts.max_new_tokens
        return self.episodes.max_tokens or one if self.several_turns else one

    @property
    def episode_trajectories(self) -> int:
        """Maximum number of trajectories of one episode, such that any group fits into a batch."""
        if self.batches.shared_prompts:
            return 1
        if self.environments:
            return max(one.episode_trajectories for one in self.by_environment.values())
        return self.episodes.max_trajectories or self.batch_rows // self.samples_selected

    @property
    def sampled_tokens(self) -> int:
        """Maximum number of tokens that the policy samples in an episode of one trajectory."""
        if self.environments:
            return max(one.sampled_tokens for one in self.by_environment.values())
        one = self.rollouts.max_new_tokens
        return (
            min(self.episodes.max_turns * one, self.episode_tokens) if self.several_turns else one
        )

    @property
    def max_context_tokens(self) -> int:
        """Maximum number of tokens that a request may have before the sampled ones."""
        prompt = self.rollouts.max_prompt_tokens
        return prompt + self.episode_tokens - 1 if self.several_turns else prompt

    @property
    def sequence_tokens(self) -> int:
        """Maximum number of tokens of a trajectory, its prompt included."""
        return self.rollouts.max_prompt_tokens + self.episode_tokens

    @property
    def row_tokens(self) -> int:
        """Length of a row in tokens."""
        if self.batches.shared_prompts:
            answers = self.batches.sequences_per_row * self.episode_tokens
            return self.rollouts.max_prompt_tokens + answers
        return self.sequence_tokens

    @property
    def row_sampled_tokens(self) -> int:
        """Maximum number of tokens of a row that the policy samples, and that can train."""
        return min(self.row_tokens, self.batches.sequences_per_row * self.sampled_tokens)

    @property
    def most_rewards(self) -> int:
        """The number of rewards of the environment that has most."""
        return max(len(one.rewards) for one in self.by_environment.values())

    def check_together(self) -> None:
        self._can_mix()
        self._can_look_ahead()
        for name, one in self.by_environment.items():
            with self.keys_of(name):
                one._check_environment()
        self._can_train_on_log()

    def _check_environment(self) -> None:
        self._something_is_paid()
        self._functions_have_names()
        self._first_turn_fits()
        self._prompts_can_be_shared()
        self._batches_hold()
        self._can_screen()
        self._can_select()
        self._can_be_deterministic()

    def _can_look_ahead(self) -> None:
        key, window = "rlax.batches.look_ahead", self.batches.look_ahead
        if window > 1 and self.deterministic:
            raise ConfigError(key, window, "must be 1 with rlax.deterministic")
        if window > 1 and self.staleness.steps_ahead * self.curation.oversample <= 1:
            reason = (
                "has no effect, because no more groups are under way than the next batch needs: "
                "raise rlax.staleness.max_staleness or rlax.curation.oversample"
            )
            raise ConfigError(key, window, reason)

    def _can_mix(self) -> None:
        if not self.environments:
            return
        for name, one in self.environments.items():
            most, own = self.rollouts.max_new_tokens, one.rollouts.max_new_tokens
            if own is not None and own > most:
                key = f"rlax.environments.{name}.rollouts.max_new_tokens"
                raise ConfigError(
                    key, own, f"must be at most rlax.rollouts.max_new_tokens = {most}"
                )
        curation = self.curation
        right: dict[str, tuple[object, object]] = {
            "logged_samples.path": (self.logged_samples.path, ""),
            "batches.tokens": (self.batches.tokens, 0),
            "objective.guidance": (self.objective.guidance, None),
            "evaluation.sets": ([*self.evaluation.sets], []),
            "curation.stages": (len(curation.stages), 0),
            "curation.selection": (curation.selection, None),
            "curation.only": (curation.only or "", ""),
            "curation.prior.path": (curation.prior.path, ""),
        }
        _must_be_defaults(right, "is not possible with rlax.environments")

    def _something_is_paid(self) -> None:
        if not self.rewards and not self.several_turns:
            reason = f"must name at least one reward: {SINGLE_TURN} gives none"
            raise ConfigError("rlax.rewards", [], reason)

    @property
    def function_lists(self) -> dict[str, tuple[FunctionChoice, ...]]:
        """Key -> the choices of each list that may name functions."""
        sets = self.evaluation.sets.items()
        of_sets = {f"rlax.evaluation.sets.{name}.rewards": one.rewards for name, one in sets}
        of_environments = {
            f"rlax.environments.{name}.rewards": one.rewards
            for name, one in self.environments.items()
            if one.rewards is not None
        }
        of_environments |= {
            f"rlax.environments.{name}.environment.functions": one.environment.functions
            for name, one in self.environments.items()
            if one.environment is not None
        }
        return {
            "rlax.rewards": self.rewards,
            **of_environments,
            "rlax.curation.filters": self.curation.filters,
            "rlax.environment.functions": self.environment.functions,
            **of_sets,
        }

    @property
    def functions_named(self) -> list[str]:
        """The values of all keys ``function``."""
        lists = self.function_lists.values()
        return [choice.function for choices in lists for choice in choices if choice.function]

    def _functions_have_names(self) -> None:
        for key, choices in self.function_lists.items():
            check_labels(choices, key)

    def _first_turn_fits(self) -> None:
        most, one = self.episodes.max_tokens, self.rollouts.max_new_tokens
        if self.several_turns and 0 < most < one:
            reason = f"must be 0, or at least rlax.rollouts.max_new_tokens = {one}"
            raise ConfigError("rlax.episodes.max_tokens", most, reason)

    def _prompts_can_be_shared(self) -> None:
        reason = ""
        if self.several_turns:
            reason = f"rlax.environment {self.environment.name}: only {SINGLE_TURN} can share them"
        elif self.signals:
            names = ", ".join(signal.name for signal in self.signals)
            reason = f"rlax.signals {names}, which reads rows with one prompt for each sample"
        if self.batches.shared_prompts and reason:
            key = "rlax.batches.shared_prompts"
            raise ConfigError(key, True, f"must be false with {reason}")

    def _batches_hold(self) -> None:
        rows, updates = self.batch_rows, self.objective.mini_batches
        if rows % updates:
            raise ConfigError(
                "rlax.objective.mini_batches", updates, f"must divide the batch's {rows} rows"
            )
        self._check_rows(rows)

    def _check_rows(self, rows: int) -> None:
        group, groups = self.samples_selected, self.rollouts.groups_per_step
        if rows < (least := self._rows_of_group):  # samples may be as long as possible
            right = (
                f"{least}, group_size = {group} divided by sequences_per_row and rounded up"
                if self.batches.shared_prompts
                else f"{self.samples_key} = {group}"
            )
            raise ConfigError("rlax.batches.rows", rows, f"must be at least {right}")
        if self.several_turns and rows < group * self.episode_trajectories:
            raise ConfigError(
                "rlax.episodes.max_trajectories",
                self.episodes.max_trajectories,
                f"must not exceed {rows // group}: a batch has {rows} rows, and a group of "
                f"{group} episodes must fit into it. Lower it, or raise rlax.batches.rows",
            )
        in_row = min(self.batches.sequences_per_row, self.row_tokens)
        samples = rows * in_row // group * group  # of whole groups
        if not self.batches.tokens and samples < groups * group:
            raise ConfigError(
                "rlax.batches.rows",
                rows,
                f"times sequences_per_row must be at least groups_per_step * {self.samples_key} = "
                f"{groups * group} samples",
            )
        most = min(samples * self.episode_tokens, rows * self.row_tokens)
        if self.batches.tokens > most:
            raise ConfigError(
                "rlax.batches.tokens",
                self.batches.tokens,
                f"must not exceed {most}, the capacity of {rows} rows: raise rlax.batches.rows or "
                "sequences_per_row",
            )

    @property
    def samples_key(self) -> str:
        """The key that says how many samples of a group a batch holds, for messages."""
        selection = self.curation.selection
        return (
            "rlax.curation.selection.samples" if selection and selection.samples else "group_size"
        )

    def _can_select(self) -> None:
        if (selection := self.curation.selection) is None:
            return
        key = "rlax.curation.selection"
        if selection.samples > (size := self.rollouts.group_size):
            reason = f"must not exceed rlax.rollouts.group_size = {size}"
            raise ConfigError(f"{key}.samples", selection.samples, reason)
        if self.several_turns and (most := self.episodes.max_trajectories) != 1:
            reason = "must be 1 with rlax.curation.selection: each sample that trains has one row"
            raise ConfigError("rlax.episodes.max_trajectories", most, reason)
        batches = {
            "sequences_per_row above 1": self.batches.sequences_per_row > 1,
            "tokens": self.batches.tokens > 0,
        }
        for name, there in batches.items():
            if there:
                reason = (
                    f"must be null with rlax.batches.{name}: it fills a row for each sample of "
                )
                raise ConfigError(key, selection.name, f"{reason}a fixed number of groups")

    def _can_screen(self) -> None:
        key, pilots = "rlax.curation.screening.pilots", self.curation.screening.pilots
        if pilots >= (size := self.rollouts.group_size):
            raise ConfigError(key, pilots, f"must be less than rlax.rollouts.group_size = {size}")
        if pilots and self.several_turns:
            name = self.environment.name
            reason = f"must be 0 with rlax.environment {name}: only {SINGLE_TURN} can be screened"
            raise ConfigError(key, pilots, reason)

    def _can_train_on_log(self) -> None:
        if not self.trains_on_log:
            for name, without in (("min_reward", None), ("keep", "all")):
                if (value := getattr(self.logged_samples, name)) != without:
                    reason = "has no effect without rlax.logged_samples.path"
                    raise ConfigError(f"rlax.logged_samples.{name}", value, reason)
            return
        curation, staleness = self.curation, self.staleness
        right: dict[str, tuple[object, object]] = {
            "environment": (self.environment.plain_name, SINGLE_TURN),
            "staleness.reload_every": (staleness.reload_every, 1),
            "staleness.max_staleness": (staleness.max_staleness, 1),
            "curation.sampler": (curation.sampler.plain_name, "shuffled"),
            "curation.oversample": (curation.oversample, 1.0),
            "curation.screening.pilots": (curation.screening.pilots, 0),
            "curation.stages": (len(curation.stages), 0),
            "curation.selection": (curation.selection, None),
            "curation.only": (curation.only or "", ""),
            "curation.prior.path": (curation.prior.path, ""),
        }
        _must_be_defaults(right, "has no effect with rlax.logged_samples")
        if self.rollouts.only_temperature is None:
            reason = "must be a number with rlax.logged_samples: the one they were sampled at"
            raise ConfigError("rlax.rollouts.temperature", "a schedule", reason)

    def _can_be_deterministic(self) -> None:
        if not self.deterministic:
            return
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
            reason = (
                "must be 0 with rlax.deterministic, because it takes a worker away from training"
            )
            raise ConfigError("rlax.evaluation.every", self.evaluation.every, reason)
        if self.rollouts.slots < self.rollouts.group_size:
            reason = (
                f"must be at least group_size = {self.rollouts.group_size} with rlax.deterministic"
            )
            raise ConfigError("rlax.rollouts.slots", self.rollouts.slots, reason)


def _must_be_defaults(right: Mapping[str, tuple[object, object]], why: str) -> None:
    """Checks that keys below ``rlax`` have their defaults: key -> (value, default)."""
    for key, (given, needed) in right.items():
        if given != needed:
            raise ConfigError(f"rlax.{key}", given, f"{why}: must be {needed!r}, the default")
