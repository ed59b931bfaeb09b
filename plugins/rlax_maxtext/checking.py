"""The trainer's results for ``rlax check``: its model, its updates, its memory, and warnings."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maxtext_overrides.sampler.buckets import fitting
from rlax_maxtext.config_agreement import (
    Demonstrations,
    check_examples,
    check_shapes,
    demonstrations,
    given_config,
)
from rlax_maxtext.options import (
    DATA,
    HUGE_LEARNING_RATE,
    MIXED,
    MixedDemonstrations,
    TrainerOptions,
    WarmStart,
    check_directory,
    check_step_rows,
    warnings_of_rate,
)
from rlax_plugin.api import (
    BuildContext,
    CheckResult,
    ConfigError,
    ObjectiveSlots,
    RlaxSection,
    Tokenizer,
    check_weight_is_known,
    in_bytes,
    own_terms,
    resolve,
)

if TYPE_CHECKING:
    from maxtext_overrides.config.loading import Config
    from maxtext_overrides.config.memory import TrainingMemory


def check(options: TrainerOptions, context: BuildContext) -> CheckResult:
    """Validates MaxText's keys, and adds up the memory that training needs.

    The number of devices is unknown, and not determined here.
    """
    from maxtext_overrides.config.loading import load_to_check, passed_on, without_effect

    given, section = given_config(context), context.section
    with passed_on(given):
        config = load_to_check(given)
        check_shapes(config, section)
        slots = resolve(section, context.part)
        added = options.demonstrations.added_rows
        if config.gradient_accumulation_steps > 1 and (own_terms(slots) or added):
            check_weight_is_known(slots)
        rows = section.batch_rows + added
        devices = _devices(config, section, rows)
        from maxtext_overrides.config import memory

        needed = memory.of_training(config, section.weights.rounded, whole_rows=bool(added))
        ignored = list(_check_first_weights(config, needed))
    warm = options.warm_start
    if warm.enabled:
        check_directory(warm, context)
        check_step_rows(warm, devices)
    data = check_examples(context, warm)
    check_vocabulary(config, context)
    if data is not None:
        check_tokenizer(config, data.source.tokenizer, data.name, DATA)
    mixed = _check_mixed(config, context, options.demonstrations)
    return CheckResult(
        says=_says(config, section, needed.parameters, devices, rows)
        | _says_of_adapters(config, needed)
        | _says_of_start(warm, data)
        | mixed,
        memory=_memory(config, context, warm, needed, devices),
        warnings=[
            *_warnings(config, section, options, without_effect(config, given)),
            # Of what the files say themselves, check_start has warned.
            *(
                ()
                if "learning_rate" in given.maxtext
                else warnings_of_rate(config.learning_rate, config.opt_type.value)
            ),
            *_warnings_of_devices(config.hardware),
            *_warnings_of_rows(config),
            *_warnings_of_memory(config, needed),
            *ignored,
        ],
        weights_bytes=needed.version,
    )


def _check_first_weights(config: Config, needed: TrainingMemory) -> Iterator[tuple[str, str]]:
    """Compares the checkpoint that training starts from with the model.

    Returns:
      Warnings.

    Raises:
      ConfigError: it is not a checkpoint, or is of another model.
    """
    from maxtext_overrides.adapters import is_adapter
    from maxtext_overrides.trainer import adapter_files, first_weights

    adapter_files.check_first_adapters(config, needed.shapes)
    keys = config.get_keys()
    if (found := first_weights.chosen(keys)) is None or config.quantization:
        return
    if "://" not in found[1]:
        first_weights.check_place(*found, config.scan_layers)
    base = {name: shape for name, shape in needed.shapes.items() if not is_adapter(name)}
    names = first_weights.check_shapes(*found, base)
    first_weights.check_converted(*found, config)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield found[0], f"has {names[0]}{more}, which the model of this config lacks"


def _devices(config: Config, section: RlaxSection, rows: int) -> int:
    """The number of devices that the batch is made for."""
    mini_batches = section.objective.mini_batches
    held = config.per_device_batch_size * config.gradient_accumulation_steps * mini_batches
    devices, rest = divmod(rows, held)
    if rest:
        raise ConfigError(
            "per_device_batch_size",
            config.per_device_batch_size,
            f"times gradient_accumulation_steps = {config.gradient_accumulation_steps} x "
            f"rlax.objective.mini_batches = {mini_batches} is {held:g}, and the "
            f"{rows} rows of a batch (rlax.batches.rows, or rlax.rollouts.groups_per_step * "
            f"{section.samples_key}, and rlax.trainer.demonstrations.rows) must be a multiple of "
            "it: times "
            "the number of devices",
        )
    return int(devices)


def check_vocabulary(config: Config, context: BuildContext) -> None:
    """Checks that the ids of the prompt source are the model's.

    Raises:
      ConfigError: some are not, or its tokenizer differs from that of ``tokenizer_path``.
    """
    choice, key = context.section.prompt_source, "rlax.prompt_source"
    source = context.part("prompt_source", choice, key)
    if (tokenizer := source.tokenizer) is not None:
        check_tokenizer(config, tokenizer, choice.name, key)
        return
    ids = [int(prompt.tokens.max()) for prompt in source.prompts("train") if len(prompt.tokens)]
    largest = max([*ids, *source.stop_ids], default=0)
    if largest >= config.vocab_size:
        reason = f"must be above {largest}, the largest token id of {key}: {choice.name}"
        raise ConfigError("vocab_size", config.vocab_size, reason)


def check_tokenizer(config: Config, tokenizer: Tokenizer, source: str, key: str) -> None:
    """Compares the tokenizer of a source, chosen under ``key``, with the model's.

    Raises:
      ConfigError: they differ.
    """
    model = str(config.tokenizer_path)
    if tokenizer.size > config.vocab_size:
        if (first := config.load_parameters_path or config.load_full_state_path) != "":
            raise ConfigError(
                key,
                source,
                f"uses the tokenizer in {tokenizer.directory}, which has {tokenizer.size} tokens "
                f"and does not belong to the model in {first}, which has vocab_size = "
                f"{config.vocab_size}",
            )
        raise ConfigError(
            "vocab_size",
            config.vocab_size,
            f"must be at least {tokenizer.size}, the size of the tokenizer in "
            f"{tokenizer.directory} that {key}: {source} uses",
        )
    is_huggingface = getattr(config.tokenizer_type, "value", config.tokenizer_type) == "huggingface"
    if not is_huggingface or Path(model).expanduser().resolve() == tokenizer.directory.resolve():
        return
    if (found := tokenizer.difference(Tokenizer.load(model, "tokenizer_path"))) is not None:
        raise ConfigError(
            key,
            source,
            f"uses the tokenizer in {tokenizer.directory}, which is not that of the model in "
            f"tokenizer_path = {model}: {found}",
        )


def _says(
    config: Config, section: RlaxSection, parameters: int, devices: int, rows: int
) -> dict[str, str]:
    name = config.model_name if config.model_name != "default" else config.decoder_block.value
    parts = config.gradient_accumulation_steps
    rows //= section.objective.mini_batches
    return {
        "model": f"{name}, {parameters:,} parameters; weights {config.weight_dtype}, arithmetic "
        f"{config.dtype}",
        "one update": f"a step of MaxText: {rows:,} rows = {parts} micro-batch(es) x {devices} "
        f"device(s) x per_device_batch_size {config.per_device_batch_size:g}; "
        f"{config.opt_type.value}, learning_rate {config.learning_rate:g}",
        "checkpoints": f"every {config.checkpoint_period} updates, and at the end"
        if config.enable_checkpointing
        else "none",
    }


def _says_of_adapters(config: Config, needed: TrainingMemory) -> dict[str, str]:
    from maxtext_overrides import adapters

    if not adapters.enabled(config):
        return {}
    lora, modules = config.lora, adapters.matched(needed.shapes)
    kinds: dict[str, int] = {}
    for path in modules:
        kind = re.sub(r"(?<=[_/])\d+(?=/)", "*", path)
        kinds[kind] = kinds.get(kind, 0) + 1
    listed = ", ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in kinds.items())
    return {
        "adapters": f"rank {lora.lora_rank}, alpha {lora.lora_alpha:g}, "
        f"{sum(modules.values()):,} parameters, in {listed}"
    }


def _says_of_start(warm: WarmStart, data: Demonstrations | None) -> dict[str, str]:
    if not warm.enabled:
        return {}
    if warm.directory:
        return {"warm start": f"the finished one in {warm.directory}"}
    if data is None and warm.data is not None:
        return {"warm start": "supervised, it has ended"}
    if data is not None:
        most = "" if warm.steps is None else f", at most {warm.steps:,} steps,"
        return {
            "warm start": f"supervised, {data}, {warm.epochs} epoch(s){most} in steps of "
            f"{warm.batch_rows} rows, learning_rate {warm.learning_rate:g}"
        }
    below = "below it the run ends with an error" if warm.required else "RL starts also below it"
    return {
        "warm start": f"supervised, at most {warm.most_steps:,} steps, until pass@1 on held-out "
        f"problems is {warm.pass_at_1_from:g}; {below}"
    }


def _check_mixed(
    config: Config, context: BuildContext, options: MixedDemonstrations
) -> dict[str, str]:
    """Reads the demonstrations beside RL; returns what is said of them.

    Raises:
      ConfigError, RlaxError: see ``demonstrations``.
    """
    if options.data is None:
        return {}
    data = demonstrations(context, options)
    check_tokenizer(config, data.source.tokenizer, data.name, f"{MIXED}.data")
    rows = f"{options.rows} rows in each batch, weight {options.weight:g}"
    return {"demonstrations beside RL": f"{data}, {rows}"}


def _memory(
    config: Config,
    context: BuildContext,
    warm: WarmStart,
    needed: TrainingMemory,
    devices: int,
) -> dict[str, int]:
    from maxtext_overrides.config.memory import FIRST_BASE

    slots = resolve(context.section, context.part)
    rows, held = int(config.per_device_batch_size * devices), config.micro_batch_size_to_train_on
    logits, inputs = needed.logits * rows // held, needed.layer_inputs * rows // held
    tokens, phase = f"{rows:,} x {needed.logits_positions:,} tokens", ""
    # The loss of the warm start is MaxText's own, which needs logits for all positions.
    if warm.enabled and not warm.directory:
        of_all = needed.logits * config.max_target_length // needed.logits_positions
        warm_logits = of_all * warm.batch_rows // held
        if warm_logits > logits:
            logits, phase = warm_logits, " in the warm start"
            tokens = f"{warm.batch_rows:,} x {config.max_target_length:,} tokens"
    tiled = f", a tile of {config.num_vocab_tiling}" if config.num_vocab_tiling > 1 else ""
    found = {
        "parameters": needed.weights,
        f"optimizer state ({config.opt_type.value})": needed.optimizer,
        "gradients": needed.gradients,
        f"logits of {tokens} and their gradient{phase}{tiled}": 2 * logits,
        f"inputs of {config.num_decoder_layers} layers, for the backward pass": inputs,
    }
    if needed.laid_out:
        found[f"copy of the weights in {config.dtype}, for arithmetic"] = needed.laid_out
    if devices > 1:
        found[f"a layer and its gradient, and the output, gathered on {devices} devices"] = (
            needed.gathered * devices
        )
    copies = kept_copies(slots, context.section).items()
    if not config.lora.enable_lora:
        return found | {what: needed.version if one else needed.weights for what, one in copies}
    of_step = sum(found.values()) - needed.weights - needed.optimizer
    found |= {
        f"{what}, of the adapters": needed.published if one else needed.trained
        for what, one in copies
    }
    if (beyond := needed.version - needed.published - of_step) > 0:
        found[FIRST_BASE] = beyond
    return found


def kept_copies(slots: ObjectiveSlots, section: RlaxSection) -> dict[str, bool]:
    """The copies of the weights that a trainer keeps on its devices.

    Returns:
      Purpose -> True if it is a weight version, whose dtypes may be others than the weights'.
    """
    in_host_memory = {one.plain_name for one in section.signals if one.options.get("offload")}
    found = {"copy that is being published": True}
    if slots.needs_reference and "reference" not in in_host_memory:
        found["reference policy"] = False
    reprefill = slots.algorithm.old_policy == "reprefill" and slots.max_staleness > 1
    if reprefill and "old_policy" not in in_host_memory:
        found["old policy (reprefill)"] = False
    return found


# Files in /dev of an accelerator. Whoever asked JAX would take the device of a run that trains.
_DEVICE_FILES = {
    "tpu": ("accel[0-9]*", "vfio/[0-9]*"),
    "gpu": ("nvidia[0-9]*", "kfd", "dxg"),
    "gpu_multiprocess": ("nvidia[0-9]*", "kfd", "dxg"),
}


def _warnings_of_devices(hardware: str) -> Iterator[tuple[str, str]]:
    patterns = _DEVICE_FILES.get(hardware, ())
    remote = "proxy" in os.environ.get("JAX_PLATFORMS", "")  # Pathways: devices of other machines
    if patterns and not remote and not any(any(Path("/dev").glob(one)) for one in patterns):
        yield (
            "hardware",
            f"is {hardware}, and this machine has no such device (none of "
            f"{', '.join(f'/dev/{one}' for one in patterns)}): rlax train ends at once where JAX "
            "finds the processor only",
        )


# Above it, what is published on reinforcement learning of pretrained models does not go; with
# adapters ten times as much (docs/adapters.md).
_HIGH_LEARNING_RATE = 1e-4
_MANY_LOGITS = 2**30  # bytes


def _warnings(
    config: Config,
    section: RlaxSection,
    options: TrainerOptions,
    without_effect: Mapping[str, tuple[Any, Any]],
) -> Iterator[tuple[str, str]]:
    """Settings that are valid but probably not intended."""
    for key, (given, used) in without_effect.items():
        yield key, f"is {given} in the file, without effect: model_name sets it to {used}"
    pretrained = config.load_parameters_path or config.load_full_state_path
    if not pretrained and not options.warm_start.enabled:
        yield "load_parameters_path", "is empty, so training starts from random weights"
    if config.learning_rate == 0:
        yield "learning_rate", "is 0, so the model learns nothing"
    high = _HIGH_LEARNING_RATE * (10 if config.lora.enable_lora else 1)
    if pretrained and HUGE_LEARNING_RATE >= config.learning_rate > high:
        yield "learning_rate", f"is {config.learning_rate:g}, which is high for a pretrained model"
    if options.allow_untested:
        yield "rlax.trainer.allow_untested", "is true: overrides of MaxText are not verified"
    period = config.checkpoint_period
    if not config.enable_checkpointing:
        yield "enable_checkpointing", "is false, so a killed run starts from the beginning"
    elif not 0 < period <= config.steps:
        yield (
            "checkpoint_period",
            f"is {period} with {config.steps} steps, so a killed run starts from the beginning",
        )
    weights = section.weights
    if weights.rounded and (arithmetic := np.dtype(config.dtype).name) != "bfloat16":
        yield (
            "rlax.weights.dtype",
            f"is bfloat16, but the trainer computes in {arithmetic}: it sees small updates that "
            "rounding removes from the weights of workers, so their log-probs differ; set it to "
            "model, or dtype to bfloat16, with which both compute with rounded weights",
        )
    length = config.trainable_position_size
    if 0 < length < section.sequence_tokens:
        yield "trainable_position_size", f"is {length}, which is shorter than a row"


def _warnings_of_rows(config: Any) -> Iterator[tuple[str, str]]:
    row = config.max_target_length
    if (wanted := fitting(row, functools.partial(getattr, config))) != row:
        yield (
            "max_target_length",
            f"is {row}, and the attention kernel of TPUs takes only multiples of 128 that its "
            "blocks divide (sa_block_q, sa_block_kv, sa_block_kv_compute): let prompt and "
            f"completion together have {wanted} tokens",
        )


def _warnings_of_memory(config: Config, needed: TrainingMemory) -> Iterator[tuple[str, str]]:
    if config.num_vocab_tiling == 1 and needed.logits > _MANY_LOGITS:
        yield (
            "num_vocab_tiling",
            f"is 1, so the logits of a micro-batch take {in_bytes(needed.logits)} on a device, and "
            "their gradient takes as much; set it to 8, or raise gradient_accumulation_steps",
        )
