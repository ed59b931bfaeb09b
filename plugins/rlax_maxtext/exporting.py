"""The trainer's part of ``rlax export``: the model, its tokenizer, and the directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlax_maxtext.config_agreement import given_config
from rlax_plugin.api import (
    Arrays,
    BuildContext,
    ConfigError,
    Conversion,
    Exported,
    Tokenizer,
    model_tokenizer,
    new_directory,
)

if TYPE_CHECKING:
    from maxtext_overrides.config.loading import Config
    from maxtext_overrides.models.merged import RecordedBase
    from maxtext_overrides.models.reading import StoredWeights, Weights

_TOKENIZER = "tokenizer_path"


def export_model(
    context: BuildContext,
    weights: Weights,
    out: Path,
    dtype: str,
    most_bytes: int,
    peft: bool,
) -> Exported:
    """See ``Trainer.export_model``."""
    from maxtext_overrides.config.loading import load_to_check, passed_on
    from maxtext_overrides.models import export
    from maxtext_overrides.models.maxtext_keys import of_maxtext
    from maxtext_overrides.models.reading import opened

    given = given_config(context)
    with passed_on(given):
        config = load_to_check(given)
    if peft:
        return _export_adapters(context, config, weights, out, dtype)
    of_maxtext(config)  # first: no tokenizer would help a model that cannot be exported
    tokenizer = _tokenizer(context, config.vocab_size)
    model = export.describe(config, tokenizer.directory, lambda: _special_ids(tokenizer))
    stored = opened(weights)
    if config.lora.enable_lora:
        recorded = _recorded(context, config, weights)
        stored = _merged(config, stored, recorded if isinstance(weights, str) else None)
    export.check_weights(model.variables, stored.shapes)
    with new_directory("--out", out) as directory:
        files = export.write(directory, model, stored, dtype, most_bytes)
    notes = [
        f"config.json is made from MaxText's keys: {tokenizer.directory} has none of this model"
    ]
    return Exported(
        f"{model.name}, {export.parameters(model):,} parameters, {dtype}",
        files,
        notes if model.made else (),
    )


def _export_adapters(
    context: BuildContext, config: Config, weights: Weights, out: Path, dtype: str
) -> Exported:
    from maxtext_overrides.models import convert, peft
    from maxtext_overrides.models.reading import opened

    if not config.lora.enable_lora:
        reason = "is of adapters, and this run has none (lora.enable_lora): export the whole model"
        raise ConfigError("--peft", True, reason)
    _recorded(context, config, weights)
    stored = opened(weights)
    with new_directory("--out", out) as directory:
        files = peft.write(directory, config, stored, dtype)
    rank, alpha = config.lora.lora_rank, config.lora.lora_alpha
    notes = [
        "base_model_name_or_path is null: the source of load_parameters_path is not on this machine"
    ]
    known = convert.source_of(config.load_parameters_path) is not None
    return Exported(
        f"adapters, rank {rank}, alpha {alpha:g}, {dtype}", files, () if known else notes
    )


def _recorded(context: BuildContext, config: Config, weights: Weights) -> RecordedBase | None:
    """Reads what is known of the base of adapters.

    Raises:
      ConfigError: the base of a checkpoint is not known, or its alpha is not the config's.
    """
    from maxtext_overrides.models.merged import base_of, recorded_base

    is_version = not isinstance(weights, str)
    found = (
        recorded_base(context.run_url) if is_version else base_of(weights, "checkpoint", weights)
    )
    if found is not None:
        found.check_alpha(config)
    return found


def converter(config: Any) -> Conversion:
    """See ``Trainer.converter``.

    Args:
      config: MaxText's, validated.
    """
    from maxtext_overrides.models.export import write_version
    from maxtext_overrides.models.maxtext_keys import of_maxtext
    from maxtext_overrides.models.reading import HeldWeights
    from maxtext_overrides.models.rules import variables

    model = variables(of_maxtext(config), config.scan_layers)

    def convert(arrays: Arrays, out: Path, wrote: Callable[[str, np.ndarray], None]) -> None:
        dtypes = {name: np.dtype(array.dtype) for name, array in arrays.items()}
        weights: StoredWeights = HeldWeights(dict(arrays))
        if config.lora.enable_lora:
            weights = _merged(config, weights)
        write_version(out, model, weights, dtypes, wrote)

    return convert


def _merged(
    config: Config, stored: StoredWeights, recorded: RecordedBase | None = None
) -> StoredWeights:
    """The weights with their adapters added.

    Args:
      recorded: the base of a checkpoint's adapters; None: a weight version, which has it.

    Raises:
      ConfigError: the base is not known, or they have no adapters of it.
    """
    from maxtext_overrides.models.merged import MergedWeights
    from maxtext_overrides.models.reading import Checkpoint

    base, path = stored, config.load_parameters_path
    if recorded is not None:
        if not path:
            reason = "must be set: a checkpoint has adapters only, and this is where their base is"
            raise ConfigError("load_parameters_path", path, reason)
        base = Checkpoint(path)
    return MergedWeights(base, stored, config, recorded)


def _tokenizer(context: BuildContext, vocab_size: int) -> Tokenizer:
    """The tokenizer of the model; without ``tokenizer_path``, that of its prompts.

    Raises:
      ConfigError: there is none, or it is not the model's.
    """
    path: object = given_config(context).maxtext.get(_TOKENIZER)
    of_prompts = context.section.prompt_source.options.get("tokenizer")
    if isinstance(path, str) and path:
        key, found = _TOKENIZER, Tokenizer.load(path, _TOKENIZER)
    elif isinstance(of_prompts, str) and of_prompts:
        key, path = "rlax.prompt_source.tokenizer", of_prompts
        found = model_tokenizer(context, name=of_prompts)
    else:
        reason = (
            "is not set, so that the tokenizer of this model is not known: give "
            f"{_TOKENIZER}=DIR, a directory with tokenizer.json"
        )
        raise ConfigError(_TOKENIZER, None, reason)
    if found.size > vocab_size:
        reason = f"has ids up to {found.size - 1}, and the model has {vocab_size} (vocab_size)"
        raise ConfigError(key, path, reason)
    return found


def _special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """Settings of the tokens that begin and end a text, for files that have to be made."""
    ids: dict[str, Any] = {"eos_token_id": list(tokenizer.stop_ids)}
    if tokenizer.bos_ids:
        ids["bos_token_id"] = tokenizer.bos_ids[0]
    if tokenizer.stop_ids:
        ids["pad_token_id"] = tokenizer.pad_id
    return ids
