"""Measures the log-prob gaps of a config: its trainer and its engine in this process.

The trainer runs as in training, on the calling thread. In place of the controller stands a port
that generates with the engine whenever the trainer asks for a batch, and publishes through the
weight store; a signal shows the trainer's model. So every number is computed by the code paths of a
run: weights are written, loaded and verified, samples are laid out as batches.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.errors import ConfigError, RlaxError, WeightsMismatchError
from rlax_plugin.base.processes.inside import Lines, answer_once
from rlax_plugin.base.types import NATIVE, SAFETENSORS, TrainBatch, VersionPart, WeightVersion
from rlax_plugin.build import registry_for
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.loading import ResolvedConfig, of_process, resolved
from rlax_plugin.data.prompts.of_run import training_prompts
from rlax_plugin.ports.protocols import Arrays, BuildContext, RolloutEngine
from rlax_plugin.ports.training import Decision, NewWeights, Trainer, TrainerPort
from rlax_plugin.rollout.fleet.requests import sampling_params
from rlax_plugin.run.programs.engine import check_scores
from rlax_plugin.tools.commands.numerics.gaps import PACKED, Gaps, cells
from rlax_plugin.tools.commands.numerics.ways import COMPANY, SHARED, Contexts, Generated, Ways
from rlax_plugin.training.objective.batches import build_arrays
from rlax_plugin.training.signals.model_view import ModelView
from rlax_plugin.training.signals.signal import BatchSignal
from rlax_plugin.weights import converting
from rlax_plugin.weights.converting import Converter
from rlax_plugin.weights.publisher import described, fingerprints
from rlax_plugin.weights.verification import canary_tokens, take_version

_SIGNAL = "numerics"
_ENGINE = "rlax.rollouts.engine"
# An update as large as this one moves log-probs by more than rounding does.
_LEARNING_RATE = 1e-3

Says = Callable[[str], None]
"""Is told what happens next."""


class _Measured(Exception):
    """Everything is measured; the trainer must not go on."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of ``measure``.

    Attributes:
      gaps: of each way to generate and to lay out.
      tolerance: that of the canary, nats; None: the trainer gives none.
      moved: 95th percentile of what the update changed log-probs by, nats.
      temperature: of the samples.
      refused: the reason why workers would not take the weights; "": they would.
    """

    gaps: Sequence[Gaps]
    tolerance: float | None
    moved: float
    temperature: float
    refused: str = ""


def measured_config(config: ResolvedConfig, directory: Path) -> ResolvedConfig:
    """Returns a config that trains the same model with a plain objective, below a directory.

    Raises:
      ConfigError: the config is wrong.
    """
    content = dict(config.content)
    section = dict(content["rlax"])
    mini_batches = config.section.objective.mini_batches
    section["objective"] = {"preset": "reinforce", "mini_batches": mini_batches}
    if config.section.staleness.max_staleness > 1:
        section["objective"]["allow_uncorrected"] = True
    section["signals"] = []
    content |= {
        "rlax": section,
        "steps": 2 * mini_batches,
        "run_name": "numerics",
        "base_output_directory": str(directory),
    }
    if isinstance(rate := content.get("learning_rate"), float):
        content["learning_rate"] = max(_LEARNING_RATE, rate)
    # Else the first update may be one of a warm-up, whose learning rate is 0.
    schedule = {"learning_rate_schedule_steps": content["steps"], "warmup_steps_fraction": 0.0}
    content |= {key: value for key, value in schedule.items() if key in content}
    made = resolved(content, arguments=config.arguments, source=config.source)
    return dataclasses.replace(made, functions=config.functions)


def measure(config: ResolvedConfig, directory: Path, says: Says) -> Measured:
    """Generates before and after an update in all ways, and compares with the trainer.

    Args:
      config: of ``measured_config``.
      directory: for weights and the trainer's files.

    Raises:
      ConfigError: the config's trainer or engine cannot be measured.
      RlaxError: one of them failed, or the trainer ended early or did not show its model.
    """
    section, registry = config.section, registry_for(config.section)
    run_url = f"{directory}/numerics"
    context = BuildContext(
        directory, section.seed, section, config, run_url=run_url, functions=config.functions
    )

    def part(kind: str, choice: Any, key: str) -> Any:
        return registry.part(kind, choice, key, context)

    first = next(iter(section.by_environment))
    says(f"reading the prompts{f' of the environment {first}' * bool(first)}")
    key = section.key_of(first, "prompt_source")
    source = part("prompt_source", section.prompt_source, key)
    prompts = training_prompts(section, source)
    sampling = dataclasses.replace(sampling_params(section, source), stop_ids=(), stop_strings=())
    tokens = canary_tokens(prompts, section.rollouts.max_prompt_tokens)

    def engine() -> RolloutEngine:
        built: RolloutEngine = part("rollout_engine", section.rollouts.engine, _ENGINE)
        check_scores(built, section.rollouts.engine.name)
        return built

    store = part("weight_store", section.weights.store, "rlax.weights.store")
    run = _Run(section, engine, Contexts(prompts), sampling, says)
    port = _Port(run, store, f"{directory}/weights", tokens)
    trainer = _trainer(config, context, part, run)
    # A model that cannot be converted is an error here.
    run.converter = Converter(trainer.converter, store, lambda reason: None)
    says("starting the trainer")
    try:
        trainer.run(port)
    except _Measured:
        pass
    else:
        raise RlaxError("the trainer ended before its second update")
    finally:
        run.close()
    return run.measured()


def _trainer(config: ResolvedConfig, context: BuildContext, part: Any, run: _Run) -> Trainer:
    """Builds the trainer with a signal that shows its model."""
    section, key = config.section, "rlax.trainer"

    def with_signal(kind: str, choice: Choice, key: str) -> Any:
        return (
            _Shows(run) if (kind, choice.name) == ("signal", _SIGNAL) else part(kind, choice, key)
        )

    shown = section.model_copy(update={"signals": (Choice(name=_SIGNAL),)})
    registry = registry_for(section)
    offer = registry.offer("trainer", section.trainer.part, key)
    options = registry.options("trainer", section.trainer, key)
    own = dataclasses.replace(context, section=shown, part=with_signal)
    trainer: Trainer = offer.extension.build(options, own)
    if not trainer.takes_signals:
        reason = "does not declare takes_signals, so that its log-probs cannot be seen"
        raise ConfigError(f"{key}.name", section.trainer.name, reason)
    return trainer


class _Run:
    """What the port and the signal share: the engine, and what it has generated."""

    def __init__(
        self,
        section: RlaxSection,
        make_engine: Callable[[], RolloutEngine],
        contexts: Contexts,
        sampling: Any,
        says: Says,
    ):
        self._section, self._make_engine, self.says = section, make_engine, says
        self._contexts, self._sampling = contexts, sampling
        self._loop = asyncio.Runner()
        self._ways: Ways | None = None
        self._generated: list[Generated] = []
        self._gaps: list[Gaps] = []
        self._before: np.ndarray | None = None
        self.tolerance: float | None = None
        self.converter: Converter | None = None
        self._moved: float | None = None
        self._refused = ""

    def generate(self, version: WeightVersion) -> list[Generated]:
        """Takes a version, and generates in all ways."""
        self._generated = self._loop.run(self._generate(version))
        return self._generated

    async def _generate(self, version: WeightVersion) -> list[Generated]:
        if first := self._ways is None:
            self.says("building the engine, and compiling its programs")
            engine = self._make_engine()
            self._ways = Ways(engine, self._section, self._contexts, self._sampling, self.says)
            await engine.prepare()
            if not engine.capabilities.logprobs:
                name, reason = self._section.rollouts.engine.name, "reports no log-probs"
                raise ConfigError(f"{_ENGINE}.name", name, reason)
        ways = self._ways
        assert ways is not None
        if (wanted := ways.engine.capabilities.weights_format) != NATIVE:
            self.says(f"converting version {version.version}")
            version = self._converted(version, wanted)
        self.says(f"loading version {version.version} into the engine")
        try:
            longest = self._section.rollouts.max_new_tokens
            await take_version(ways.engine, version, max_new_tokens=longest)
        except WeightsMismatchError as error:  # which ends a worker; here it is to be explained
            self._refused = str(error)
            await ways.engine.use(await ways.engine.load(version))
        return await (ways.fresh() if first else ways.updated())

    def _converted(self, version: WeightVersion, wanted: str) -> WeightVersion:
        """Returns a version as an engine reads it that declares another format."""
        assert self.converter is not None
        path = f"{version.paths[0]}-{converting.PART}"
        tensors = self.converter.write(version, None, path)
        part = VersionPart(converting.PART, path, tensors, SAFETENSORS)
        found = dataclasses.replace(version, converted=(part,)).of_format(wanted)
        if found is None:
            name, reason = self._section.rollouts.engine.name, f"reads the format {wanted}"
            raise ConfigError(f"{_ENGINE}.name", name, f"{reason}, which no trainer makes")
        return found

    def compare(self, model: ModelView, step: int) -> None:
        """Computes the gaps of what was generated last."""
        self.says(f"computing the trainer's log-probs with version {step - 1}")
        generated, batches = self._generated, self._section.batches
        self._gaps += self._compared(model, generated, step)
        if self._before is None:
            together, count = (
                SHARED if batches.shared_prompts else COMPANY,
                batches.sequences_per_row,
            )
            rows = [dataclasses.replace(o, way=PACKED) for o in generated if o.way == together]
            if rows and (batches.shared_prompts or count > 1):
                self._gaps += self._compared(model, rows, step, count, batches.shared_prompts)
            self._company = [one for one in generated if one.way == COMPANY]
            self._before = self._logprobs(model, self._company, step)[0]
        else:
            after = self._logprobs(model, self._company, step)[0]
            moved = np.nan_to_num(np.abs(after - self._before), nan=np.inf)
            self._moved = float(np.quantile(moved, 0.95))

    def _compared(
        self, model: ModelView, generated: Sequence[Generated], step: int, *layout: Any
    ) -> list[Gaps]:
        ours_n, theirs_n, depth_n, group_n = self._logprobs(model, generated, step, *layout)
        gap_n, found = np.abs(ours_n - theirs_n), []
        for way in dict.fromkeys(one.way for one in generated):
            own = [i for i, one in enumerate(generated, 1) if one.way == way]
            which = np.isin(group_n, own)
            found.append(Gaps(way, depth_n[which], gap_n[which]))
        return found

    def _logprobs(
        self,
        model: ModelView,
        generated: Sequence[Generated],
        step: int,
        sequences_per_row: int = 1,
        shares: bool = False,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns of each token: the trainer's and the engine's log-prob, depth, and group."""
        groups = tuple(one.group for one in generated)
        batch = build_arrays(
            TrainBatch(step, groups, tuple(np.zeros(len(g.episodes)) for g in groups)),
            rows=sum(len(group.episodes) for group in groups),
            length=self._section.row_tokens,
            sequences_per_row=sequences_per_row,
            shared_prompts=shares,
            temperatures=self._section.rollouts.only_temperature is None,
        )
        logprobs_bt = model.forward(batch, "logprobs")["logprobs"]
        sampled_bt = batch["rl_mask"] > 0
        return (
            logprobs_bt[sampled_bt],
            batch["rl_behaviour_logprobs"][sampled_bt],
            batch["targets_position"][sampled_bt] + 1,
            batch["rl_group"][sampled_bt],
        )

    def batch(self, step: int, generated: Sequence[Generated]) -> Mapping[str, np.ndarray]:
        """Returns a batch of the run's shape: samples in company, one after the other better."""
        section = self._section
        groups = [one.group for one in generated if one.way == COMPANY]
        count = len(groups)
        groups = [groups[i % count] for i in range(section.batch_rows)]
        # By sample, not by row: else a sample's gradients would cancel.
        sign = (np.array([(-1.0) ** (i % count)]) for i in range(len(groups)))
        return build_arrays(
            TrainBatch(step, tuple(groups), tuple(sign)),
            rows=section.batch_rows,
            length=section.row_tokens,
            reward_parts=section.most_rewards,
            temperatures=section.rollouts.only_temperature is None,
        )

    def measured(self) -> Measured:
        temperature = self._sampling.temperature
        if self._moved is None:
            raise RlaxError("the trainer did not give its signals the first two batches")
        return Measured(self._gaps, self.tolerance, self._moved, temperature, self._refused)

    def close(self) -> None:
        if self._ways is not None:
            self._ways.engine.close()
        self._loop.close()


class _Shows(BatchSignal):
    """Computes the gaps with the model that the trainer shows."""

    def __init__(self, run: _Run):
        self._run = run

    def complete(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        if step <= 2:
            self._run.compare(model, step)
        self._run.says("compiling and training a step")
        return {}


class _Port(TrainerPort):
    """The controller as the trainer sees it."""

    def __init__(self, run: _Run, store: Any, directory: str, tokens: np.ndarray):
        self._run, self._store, self._directory = run, store, directory
        self._tokens = tokens
        self._parts: dict[str, VersionPart] = {}
        self._version: WeightVersion | None = None
        self._batch: Mapping[str, np.ndarray] = {}

    @property
    def canary_tokens(self) -> np.ndarray:
        return self._tokens

    def take(self, weights: NewWeights) -> None:
        """Writes a version; the third one ends the measurement."""
        if weights.step > 1:
            raise _Measured
        self._run.says(f"writing version {weights.step}")
        for name, arrays in weights.parts.items():
            if arrays is not None:
                self._parts[name] = self._written(weights.step, name, arrays)
        canary = weights.canary
        if canary is not None:
            canary = dataclasses.replace(canary, logprobs=np.asarray(canary.logprobs, np.float32))
            self._run.tolerance = canary.tolerance
        parts = tuple(self._parts[name] for name in weights.parts)
        self._version = WeightVersion(weights.step, weights.step, parts, canary)

    def _written(self, step: int, name: str, arrays: Arrays) -> VersionPart:
        prints, path = fingerprints(arrays), f"{self._directory}/{step}-{name}"
        self._store.save(path, arrays)
        return described(name, path, arrays, prints)

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        assert self._version is not None, "weights are published before the first batch"
        generated = self._run.generate(self._version)
        if step == 1:
            self._batch = self._run.batch(step, generated)
        return self._batch

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        self._run.says(f"{phase}, step {done} of at most {of} {note}".rstrip())

    def waits(self, what: str, typical_s: float = 0.0) -> None:
        self._run.says(what)

    def decide(self, step: int) -> Decision:
        return Decision(save=False, stop=False)


def _run(asked: dict[str, Any], lines: Lines) -> None:
    directory = Path(asked["directory"])
    config = measured_config(of_process(asked), directory)
    found = measure(config, directory, lambda what: lines.say({"next": what}))
    table = [dataclasses.astuple(cell) for gaps in found.gaps for cell in cells(gaps)]
    told = {name: getattr(found, name) for name in ("tolerance", "moved", "temperature", "refused")}
    lines.say({"table": table, **told})


if __name__ == "__main__":
    answer_once(_run)
