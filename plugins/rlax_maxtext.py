"""Trainer ``maxtext``: MaxText's own training loop with the run's objective."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlax_plugin.batches import ARRAYS
from rlax_plugin.config import NoOptions, RlaxSection
from rlax_plugin.errors import ConfigError
from rlax_plugin.hookspecs import hookimpl
from rlax_plugin.objective import make_loss, resolve
from rlax_plugin.protocols import BuildContext, Extension, Facts, Trainer, TrainerLink

if TYPE_CHECKING:
    import numpy as np

    from maxtext_overrides.config import Config
    from maxtext_overrides.memory import TrainingMemory

log = logging.getLogger("rlax.trainer")


class MaxTextTrainer(Trainer):
    """Runs on the main thread; everything it calls on the link is called there."""

    def __init__(self, context: BuildContext):
        self._context = context
        self._section: RlaxSection = context.section

    def _reporter(self, link: TrainerLink) -> Callable[[int, float], None]:
        most = self._section.warm_start.steps

        def report(step: int, pass_at_1: float) -> None:
            log.info("warm start: step %d, validation pass@1 %.3f", step, pass_at_1)
            link.progress("warm start", step, most, f"(validation pass@1 {pass_at_1:.3f})")

        return report

    def run(self, link: TrainerLink) -> None:
        """Trains to ``steps``, or until a stop is requested.

        Raises:
          ConfigError: MaxText's config and the ``rlax`` section disagree.
          OverrideError: MaxText is not a tested version.
          Exception: whatever the link raised, unchanged.
        """
        # MaxText and JAX take seconds to import: not before the run is known to be sound.
        from maxtext_overrides import supervised
        from maxtext_overrides.canary import CanaryForward
        from maxtext_overrides.config import initialize
        from maxtext_overrides.policies import Policies
        from maxtext_overrides.train_loop import Events, Loop, fresh_weights, run_train_loop

        argv = self._context.maxtext_argv
        config = initialize(argv)
        _check_rows(config, self._section)
        _check_shapes(config, self._section)
        slots = resolve(self._section, self._context.part)
        if self._section.warm_start.enabled:
            source = _answered_prompts(self._context)
            path = supervised.warm_start(argv, config, source, self._reporter(link))
            config = initialize(argv, load_parameters_path=path)

        canary = CanaryForward(link.canary_tokens)
        policies: Policies | None = None
        if slots.needs_reference or slots.needs_old_logprobs:
            policies = Policies(config, slots, self._section, self._context.run_url)
        running: Loop | None = None

        def publish(loop: Loop) -> None:
            arrays = fresh_weights(loop)
            link.publish(loop.completed, arrays, canary(loop, arrays))

        def on_start(loop: Loop) -> None:
            nonlocal running
            running = loop
            if policies is not None:
                policies.start(loop)
            publish(loop)

        def batches(step: int) -> Mapping[str, np.ndarray]:
            batch = link.next_batch(step)
            if policies is None:
                return batch
            assert running is not None, "a loop starts before it asks for a batch"
            return policies.complete(running, step, batch)

        def on_step_end(loop: Loop, metrics: Mapping[str, Any]) -> bool:
            import jax

            publish(loop)  # dispatched first: it runs while the metrics are waited for
            found = jax.device_get(dict(metrics))
            link.step_done(loop.completed, found | (policies.metrics if policies else {}))
            return link.stop_requested

        events = Events(
            batches=batches,
            on_step_end=on_step_end,
            on_start=on_start,
            before_checkpoint=link.before_checkpoint,
        )
        arrays = ARRAYS | (policies.arrays if policies else {})
        run_train_loop(config, events, arrays=arrays, objective=make_loss(slots))

    def checkpoints(self) -> dict[int, str]:
        """See ``CheckpointReader``."""
        from maxtext_overrides.checkpoints import checkpoints

        updates = self._section.objective.updates_per_step
        return checkpoints(self._context.run_url, updates)

    def publish_checkpoint(self, link: TrainerLink, name: str) -> None:
        """See ``CheckpointReader``: MaxText's loop restores it, and has nothing left to train."""
        from maxtext_overrides.canary import CanaryForward
        from maxtext_overrides.checkpoints import items
        from maxtext_overrides.config import initialize
        from maxtext_overrides.train_loop import Events, Loop, fresh_weights, run_train_loop

        config = initialize(
            self._context.maxtext_argv,
            base_output_directory=str(self._context.run_dir),
            run_name="restored",
            load_full_state_path=items(self._context.run_url, name),
            load_parameters_path="",
            steps=self._section.objective.updates_per_step,
            enable_checkpointing=True,
        )
        canary = CanaryForward(link.canary_tokens)

        def publish(loop: Loop) -> None:
            arrays = fresh_weights(loop)
            link.publish(loop.completed, arrays, canary(loop, arrays))

        events = Events(batches=link.next_batch, on_step_end=lambda *_: True, on_start=publish)
        slots = resolve(self._section, self._context.part)
        run_train_loop(config, events, arrays=ARRAYS, objective=make_loss(slots))


def _answered_prompts(context: BuildContext) -> Any:
    choice = context.section.prompt_source
    source = context.part("prompt_source", choice, "rlax.prompt_source")
    for name in ("answer_tokens", "pad_id"):
        if not hasattr(source, name):
            raise ConfigError(
                "rlax.warm_start.enabled",
                True,
                f"prompt source {choice.name!r} has no {name}: it cannot show right answers",
            )
    return source


def _check_rows(config: Any, section: RlaxSection) -> None:
    rows, mini_batches = section.batch_rows, section.objective.mini_batches
    if config.global_batch_size_to_train_on * mini_batches == rows:
        return
    devices, passes = config.num_target_devices, config.gradient_accumulation_steps
    right, rest = divmod(rows, mini_batches * devices * passes)
    raise ConfigError(
        "per_device_batch_size",
        config.per_device_batch_size,
        f"times {devices} devices, gradient_accumulation_steps = {passes} and "
        f"rlax.objective.mini_batches = {mini_batches} must be the {rows} rows of a batch, "
        "rlax.batches.rows or rlax.rollouts.groups_per_step * group_size: "
        + ("no number is, so change the rows" if rest else f"set it to {right}"),
    )


# They let the samples of a packed row see each other, at least with what batches are fed by here:
# kernels that do not look at segments, layers with a state that runs along the row, and chunks that
# are counted from the start of the row. Likewise engram layers.
_BLIND_TO_SEGMENTS = {
    "attention": ("cudnn_flash_te", "cudnn_flash_jax"),
    "attention_type": ("chunk",),
    "decoder_block": ("qwen3_next", "qwen3_5", "llama4", "deepseek4"),
    "engram_layers": (),
}


def _check_shapes(config: Any, section: RlaxSection) -> None:
    """What can be said of MaxText's keys without knowing how many devices there are."""
    rollouts, updates = section.rollouts, section.objective.updates_per_step
    if config.max_target_length != section.row_tokens:
        raise ConfigError(
            "max_target_length",
            config.max_target_length,
            f"must be rlax.rollouts.max_prompt_tokens + max_new_tokens = {section.row_tokens}",
        )
    if rollouts.temperature == 0:
        raise ConfigError("rlax.rollouts.temperature", 0.0, "must be above 0 to train")
    if config.steps % updates:
        raise ConfigError(
            "steps",
            config.steps,
            f"counts updates, and must be a multiple of the {updates} of a batch "
            "(rlax.objective.epochs * mini_batches)",
        )
    if section.batches.sequences_per_row == 1:
        return
    for key, blind in _BLIND_TO_SEGMENTS.items():
        value = getattr(config, key)
        value = getattr(value, "value", value)
        if value in blind or (key == "engram_layers" and value):
            raise ConfigError(
                key,
                value,
                "must be another with rlax.batches.sequences_per_row above 1: with this one the "
                "samples of a row would see each other",
            )


def _check(options: NoOptions, context: BuildContext) -> Facts:
    """Validates MaxText's keys, and adds up what training needs of memory.

    How many devices there will be is not known, nor asked.
    """
    from maxtext_overrides.config import load_to_check, passed_on, without_effect

    argv, section = context.maxtext_argv, context.section
    with passed_on(argv):
        config = load_to_check(argv)
        _check_shapes(config, section)
        devices = _devices(config, section)
        from maxtext_overrides import memory

        needed = memory.of_training(config)
    if section.warm_start.enabled:
        _answered_prompts(context)
    _check_vocabulary(config, context)
    return Facts(
        says=_says(config, section, needed.parameters, devices),
        memory=_memory(config, context, needed),
        warnings=[
            *_doubts(config, section, without_effect(config, argv)),
            *_doubts_of_memory(config, needed),
        ],
    )


def _devices(config: Config, section: RlaxSection) -> int:
    """How many devices the batch is made for."""
    mini_batches = section.objective.mini_batches
    held = config.per_device_batch_size * config.gradient_accumulation_steps * mini_batches
    devices, rest = divmod(section.batch_rows, held)
    if rest:
        raise ConfigError(
            "per_device_batch_size",
            config.per_device_batch_size,
            f"times gradient_accumulation_steps = {config.gradient_accumulation_steps} and "
            f"rlax.objective.mini_batches = {mini_batches} is {held:g}, of which the "
            f"{section.batch_rows} rows of a batch (rlax.batches.rows, or groups_per_step * "
            "group_size of rlax.rollouts) must be a multiple: as many times as there are devices",
        )
    return int(devices)


def _check_vocabulary(config: Config, context: BuildContext) -> None:
    choice, key = context.section.prompt_source, "rlax.prompt_source"
    source = context.part("prompt_source", choice, key)
    ids = [int(prompt.tokens.max()) for prompt in source.prompts("train") if len(prompt.tokens)]
    largest = max([*ids, *source.stop_ids], default=0)
    if largest >= config.vocab_size:
        reason = f"must be above {largest}, the largest token id of {key}: {choice.name}"
        raise ConfigError("vocab_size", config.vocab_size, reason)


def _says(config: Config, section: RlaxSection, parameters: int, devices: int) -> dict[str, str]:
    name = config.model_name if config.model_name != "default" else config.decoder_block.value
    parts = config.gradient_accumulation_steps
    rows = section.batch_rows // section.objective.mini_batches
    return {
        "model": f"{name}, {parameters:,} parameters; weights {config.weight_dtype}, arithmetic "
        f"{config.dtype}",
        "one update": f"{rows:,} rows = {parts} micro-batch(es) x {devices} device(s) x "
        f"per_device_batch_size {config.per_device_batch_size:g}; {config.opt_type.value}, "
        f"learning_rate {config.learning_rate:g}",
        "checkpoints": f"every {config.checkpoint_period} updates, and at the end"
        if config.enable_checkpointing
        else "none",
    }


def _memory(config: Config, context: BuildContext, needed: TrainingMemory) -> dict[str, int]:
    slots, objective = resolve(context.section, context.part), context.section.objective
    tokens = f"{config.micro_batch_size_to_train_on:,} x {config.max_target_length:,} tokens"
    tiled = f", a tile of {config.num_vocab_tiling}" if config.num_vocab_tiling > 1 else ""
    found = {
        "parameters": needed.weights,
        f"optimizer state ({config.opt_type.value})": needed.optimizer,
        "gradients": needed.gradients,
        "copy that is being published": needed.weights,
        f"logits of {tokens} and their gradient{tiled}": 2 * needed.logits,
    }
    if slots.needs_reference and not objective.reference.offload:
        found["reference policy"] = needed.weights
    reprefill = slots.algorithm.old_policy == "reprefill" and slots.max_staleness > 1
    if reprefill and not objective.offload_old_policy:
        found["old policy (reprefill)"] = needed.weights
    return found


# Above it, what is published on reinforcement learning of pretrained models does not go.
_HIGH_LEARNING_RATE = 1e-4
_MANY_LOGITS = 2**30  # bytes


def _doubts(
    config: Config, section: RlaxSection, without_effect: Mapping[str, tuple[Any, Any]]
) -> Iterator[tuple[str, str]]:
    """What is allowed, and perhaps not meant."""
    for key, (given, used) in without_effect.items():
        yield key, f"{given} in the file has no effect: model_name sets it to {used}"
    pretrained = config.load_parameters_path or config.load_full_state_path
    if not pretrained and not section.warm_start.enabled:
        yield "load_parameters_path", "is empty: training starts from random weights"
    if config.learning_rate == 0:
        yield "learning_rate", "is 0: nothing will be learned"
    if pretrained and config.learning_rate > _HIGH_LEARNING_RATE:
        yield "learning_rate", f"{config.learning_rate:g} is high for a pretrained model"
    period = config.checkpoint_period
    if not config.enable_checkpointing:
        yield "enable_checkpointing", "is false: a run that is killed starts over"
    elif not 0 < period <= config.steps:
        yield "checkpoint_period", f"{period} of {config.steps} steps: a killed run starts over"
    length = config.trainable_position_size
    if 0 < length < config.max_target_length:
        yield "trainable_position_size", f"{length} is shorter than a row"


def _doubts_of_memory(config: Config, needed: TrainingMemory) -> Iterator[tuple[str, str]]:
    if config.num_vocab_tiling == 1 and needed.logits > _MANY_LOGITS:
        yield (
            "num_vocab_tiling",
            f"is 1, and a micro-batch's logits take {needed.logits / 2**30:.3g} GiB, their "
            "gradient as much: set it to 8, or raise gradient_accumulation_steps",
        )


def _build(config: NoOptions, context: BuildContext) -> MaxTextTrainer:
    return MaxTextTrainer(context)


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    return {"maxtext": Extension(NoOptions, _build, _check, needs_model=True)}
