"""Checks that MaxText's keys agree with the section ``rlax:``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlax_maxtext.options import DATA, MIXED, MixedDemonstrations, WarmStart, has_ended, of_data
from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    DatasetSource,
    PromptSource,
    PromptTable,
    ResolvedConfig,
    RlaxSection,
)

_HELD_OUT = "validation"


def given_config(context: BuildContext) -> ResolvedConfig:
    """The resolved config, whose keys are passed to MaxText.

    Raises:
      ConfigError: there is only a section.
    """
    if context.config is None:
        raise ConfigError("rlax.trainer", "maxtext", "needs a MaxText config")
    return context.config


def trains(context: BuildContext) -> bool:
    """True if the config asks for RL steps; without, its first weights are all that is wanted."""
    return context.maxtext.get("steps") != 0


def answered_prompts(context: BuildContext) -> PromptSource:
    """The run's prompt source, if it has correct answers, and others to measure pass@1 on.

    Raises:
      ConfigError: it has none.
    """
    choice = context.section.prompt_source
    source: PromptSource = context.part("prompt_source", choice, "rlax.prompt_source")
    if source.pad_id is None or not source.gives_answers:
        lacks = (
            f"prompt source {choice.name!r} gives no right answers to train on (it has no pad_id, "
            "or neither answer_tokens nor answer_turns)"
        )
        raise ConfigError("rlax.trainer.warm_start.enabled", True, f"must be false: {lacks}")
    if _HELD_OUT not in source.splits:
        lacks = (
            f"prompt source {choice.name!r} has no split {_HELD_OUT}, on which the warm start "
            f"measures pass@1, but {', '.join(source.splits)}: name one in splits or held_out"
        )
        raise ConfigError("rlax.trainer.warm_start.enabled", True, f"must be false: {lacks}")
    return source


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """The demonstrations of a supervised training, or of one beside RL.

    Attributes:
      name: of their source.
      train: those to train on.
      held_out: the split validation, on which the loss is measured; None if there is none.
    """

    name: str
    source: DatasetSource
    train: PromptTable
    held_out: PromptTable | None

    def __str__(self) -> str:
        table = self.train
        left_out = ", ".join(f"{rows.count:,} {why}" for why, rows in table.skipped.items())
        return f"{len(self.train):,} demonstrations" + (f" (left out: {left_out})" * bool(left_out))


def demonstrations(
    context: BuildContext, options: WarmStart | MixedDemonstrations
) -> Demonstrations:
    """Reads the demonstrations that the config names; the first time takes as long as their data.

    Raises:
      ConfigError: they cannot be read, or cannot be trained on; names the file and the row.
      RlaxError: they cannot be prepared.
    """
    assert options.data is not None
    key = DATA if isinstance(options, WarmStart) else f"{MIXED}.data"
    with of_data(key):
        source = context.part("prompt_source", options.data, key)
        if not isinstance(source, DatasetSource):
            reason = "must be a source over a data set, such as jsonl, parquet, hf or tfds"
            raise ConfigError(f"{key}.name", options.data.name, reason)
        source = source.of_demonstrations(options.turns, context.section.row_tokens + 1)
        held_out = source.prompts(_HELD_OUT) if _HELD_OUT in source.splits else None
        return Demonstrations(options.data.name, source, source.prompts("train"), held_out)


def check_examples(context: BuildContext, warm: WarmStart) -> Demonstrations | None:
    """Reads what a supervised training would train on; None: right answers, or it has ended.

    Raises:
      ConfigError, RlaxError: see ``answered_prompts`` and ``demonstrations``.
    """
    if not warm.enabled or warm.directory or has_ended(context):
        return None
    if warm.data is not None:
        return demonstrations(context, warm)
    answered_prompts(context)
    return None


def check_rows(config: Any, section: RlaxSection, added: int) -> None:
    """Checks that MaxText's keys give the rows of a batch on the available devices.

    Args:
      added: rows of demonstrations.

    Raises:
      ConfigError: they do not; the message says what would be right.
    """
    rows, mini_batches = section.batch_rows + added, section.objective.mini_batches
    if config.global_batch_size_to_train_on * mini_batches == rows:
        return
    devices, passes = config.num_target_devices, config.gradient_accumulation_steps
    right, rest = divmod(rows, mini_batches * devices * passes)
    raise ConfigError(
        "per_device_batch_size",
        config.per_device_batch_size,
        f"times {devices} devices x gradient_accumulation_steps = {passes} x "
        f"rlax.objective.mini_batches = {mini_batches} must equal the {rows} rows of a batch "
        f"(rlax.batches.rows, or rlax.rollouts.groups_per_step * {section.samples_key}"
        f"{f', and {added} of demonstrations' * bool(added)}): "
        + ("no value satisfies this; change the rows" if rest else f"set it to {right}"),
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


# What else than these values would compute other log-probs, or other auxiliary terms of the loss,
# for samples that share a prompt: kernels that do not ask for MaxText's mask, windows over the
# places of a row, experts that are balanced over the tokens of a row, targets further ahead.
_SHARES_PROMPTS: dict[str, tuple[Any, ...]] = {
    "attention": ("dot_product",),
    "attention_type": ("global",),
    "decoder_block": ("llama2", "mistral", "qwen2", "qwen3", "gemma"),
    "num_experts": (1,),
    "mtp_num_layers": (0,),
    "moba": (False,),
    "ici_context_parallelism": (1,),
    "dcn_context_parallelism": (1,),
}


def _check_sharing(config: Any) -> None:
    """Checks that the samples of a row can share their prompt.

    Raises:
      ConfigError: a key has a value with which they cannot.
    """
    for key, right in _SHARES_PROMPTS.items():
        value = getattr(config, key)
        value = getattr(value, "value", value)
        if value not in right:
            one_of = "one of " if len(right) > 1 else ""
            raise ConfigError(
                key,
                value,
                f"must be {one_of}{', '.join(map(str, right))} with rlax.batches.shared_prompts",
            )


def _check_adapters(config: Any, section: RlaxSection) -> None:
    """Checks that nothing else than the base and adapters is to be read.

    Raises:
      ConfigError: a key names other weights.
    """
    if path := section.objective.reference.path:
        reason = (
            "must be empty with lora.enable_lora: the reference is the model with the adapters "
            "that training starts from, which change nothing at first"
        )
        raise ConfigError("rlax.objective.reference.path", path, reason)
    if config.load_full_state_path:
        reason = (
            "must be empty with lora.enable_lora: load_parameters_path has the base, and "
            "lora.lora_restore_path adapters"
        )
        raise ConfigError("load_full_state_path", config.load_full_state_path, reason)


def _completion(section: RlaxSection) -> str:
    """The key that limits the tokens after a prompt."""
    return "rlax.episodes.max_tokens" if section.episodes.max_tokens else "max_new_tokens"


def check_shapes(config: Any, section: RlaxSection) -> None:
    """Checks MaxText's keys as far as possible without the number of devices.

    Raises:
      ConfigError: a key does not suit the section.
    """
    if config.max_target_length != section.row_tokens:
        answers = "sequences_per_row * " if section.batches.shared_prompts else ""
        raise ConfigError(
            "max_target_length",
            config.max_target_length,
            f"must be rlax.rollouts.max_prompt_tokens + {answers}{_completion(section)} = "
            f"{section.row_tokens}",
        )
    if section.batches.shared_prompts:
        _check_sharing(config)
    if config.lora.enable_lora:
        _check_adapters(config, section)
    if section.batches.sequences_per_row == 1:
        return
    for key, blind in _BLIND_TO_SEGMENTS.items():
        value = getattr(config, key)
        value = getattr(value, "value", value)
        if value in blind or (key == "engram_layers" and value):
            raise ConfigError(
                key,
                value,
                "cannot be used with rlax.batches.sequences_per_row above 1, because samples in "
                "one row would attend to each other",
            )
