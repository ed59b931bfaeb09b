"""Low-rank adapters as a directory of PEFT, read as the start of a training, and written.

PEFT computes ``W x + (lora_alpha / r) B (A x)`` with W [outputs, inputs], A [r, inputs] and
B [outputs, r], which are the tensors of ``adapter_model.safetensors``. ``adapter_config.json`` says
the rest. A directory is read only if its adapters are those of the config in every respect: the
modules by the names of the tensors and by ``target_modules``, without which PEFT drops a tensor,
rank and alpha by their keys, and no key of PEFT with a value that would compute something else. The
layout of A and B follows from that of W (``rules``).

Facts read in peft 0.21.2: ``tuners/lora/config.py``, ``tuners/lora/layer.py``,
``tuners/tuners_utils.py`` (``check_target_module_exists``), ``utils/save_and_load.py``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import regex

from maxtext_overrides.adapters import is_adapter
from maxtext_overrides.models import convert, export, finite, huggingface_config, tensors
from maxtext_overrides.models.architecture import Architecture
from maxtext_overrides.models.maxtext_keys import of_maxtext
from maxtext_overrides.models.merged import BASE_KEY
from maxtext_overrides.models.reading import StoredWeights
from maxtext_overrides.models.rules import Variable, variables
from maxtext_overrides.models.safetensors_directory import (
    ADAPTER_CONFIG,
    ADAPTERS,
    SafetensorsDirectory,
)
from rlax_plugin.base.errors import ConfigError

KEY = "lora.lora_restore_path"
_A = ".kernel_lora_a"
# Key of adapter_config.json -> the values with which PEFT computes what MaxText does; the first is
# written. None, which is also that of a key which is not there, is PEFT's "not set".
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "use_qalora": (False, None),
    "lora_bias": (False, None),
    "ensure_weight_tying": (False, None),
    # The others change the base.
    "init_lora_weights": (True, False, "gaussian", "orthogonal", None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "exclude_modules": (None, []),
    "loftq_config": ({}, None),
    "modules_to_save": (None, []),
    "target_parameters": (None, []),
}
# What the tensors show, what has an effect in training only, and what belongs to another key.
_IGNORED = (
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "layers_pattern",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "target_modules",
)
_PATTERN_S = 1.0


def _check_keys(path: str, config: Any) -> None:
    """Raises a ConfigError if PEFT computes something else, or with another rank or alpha."""
    file = Path(path) / ADAPTER_CONFIG
    with _named():
        content = huggingface_config.read(file)
    for key, value in {**dict.fromkeys(_ONLY), **content}.items():
        if key not in _IGNORED and not _is_one_of(value, right := _ONLY.get(key, (None,))):
            reason = f"must have {tensors.shown(key)}: {json.dumps(right[0])} in {ADAPTER_CONFIG}"
            raise ConfigError(KEY, path, f"{reason}, and has {json.dumps(value):.100}")
    for key, own in (("r", "lora_rank"), ("lora_alpha", "lora_alpha")):
        value, wanted = getattr(config.lora, own), content.get(key)
        if isinstance(wanted, bool) or not (isinstance(wanted, int | float) and wanted > 0):
            reason = f"{key} in {ADAPTER_CONFIG} must be a number above 0, and is {wanted!r:.100}"
            raise ConfigError(KEY, path, reason)
        if value != wanted:
            raise ConfigError(f"lora.{own}", value, f"must be {wanted!r:.100}, {key} of {file}")


def _check_targets(path: str, model: tuple[Variable, ...]) -> None:
    """Raises a ConfigError if PEFT would drop tensors that the directory has."""
    targets = huggingface_config.read(Path(path) / ADAPTER_CONFIG).get("target_modules")
    for module in _paths(model):
        if not _is_target(module, targets):
            reason = f"target_modules in {ADAPTER_CONFIG} must match {module}, whose tensors are in"
            reason += f" {ADAPTERS}, and is {json.dumps(targets):.100}"
            raise ConfigError(KEY, path, reason)


def _is_target(module: str, targets: Any) -> bool:
    """True if PEFT adapts a module of the layers, none of which is the output layer."""
    if isinstance(targets, str):
        try:  # PEFT uses re, in which a pattern of somebody else could take for ever
            matched = regex.fullmatch(targets, module, timeout=_PATTERN_S)
        except (regex.error, TimeoutError):
            return False
        return targets == "all-linear" or matched is not None
    names = [one for one in targets if isinstance(one, str)] if isinstance(targets, list) else []
    return any(module == one or module.endswith(f".{one}") for one in names)


def _is_one_of(value: Any, right: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in right)  # 0 is not False


def check(config: Any, path: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that a directory has exactly the adapters of a model, without reading an array.

    Args:
      config: MaxText's, validated.
      path: the directory.
      shapes: variable of the model -> shape.

    Raises:
      ConfigError: it has not, or the base is not named or has no counterpart in transformers.
    """
    _opened(config, path, _adapters(config, shapes))


def read(config: Any, path: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns the adapters of a directory in float32 as variables of the model.

    Args, Raises: see ``check``; also if an entry is not finite.
    """
    model = _adapters(config, shapes)
    source = _opened(config, path, model)
    with _named():
        return {one.name: finite.made(one, source, np.dtype(np.float32)) for one in model}


def _opened(config: Any, path: str, model: tuple[Variable, ...]) -> SafetensorsDirectory:
    if not config.load_parameters_path:
        reason = f"must be set: the base of the adapters in {path}, as rlax convert writes it"
        raise ConfigError(BASE_KEY, "", reason)
    _check_keys(path, config)
    with _named():
        source = SafetensorsDirectory(Path(path), adapters=True)
        expected = {name: shape for one in model for name, shape in one.tensor_shapes.items()}
        whose = "the modules that lora.lora_module_path matches"
        tensors.check_shapes(path, source.shapes, expected, whose)
        if doubles := source.doubles:
            reason = f"the tensor {min(doubles)} is float64, which would be rounded to float32"
            raise ConfigError(KEY, path, reason)
        _check_targets(path, model)
    return source


@contextmanager
def _named() -> Iterator[None]:
    """Names the config's key in errors of what reads the source of a conversion."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(KEY, error.value, error.reason, error.others) from None


def write(directory: Path, config: Any, stored: StoredWeights, dtype: str) -> list[str]:
    """Writes a directory of PEFT.

    Args:
      directory: the target.
      config: MaxText's, validated; ``lora_alpha`` and ``load_parameters_path`` are used.
      stored: the adapters; other variables in it are left out.
      dtype: one of ``DTYPES``.

    Returns:
      Names of the files with weights.

    Raises:
      ConfigError: there are no adapters, or they have no counterpart in transformers.
      RlaxError: a variable cannot be read.
    """
    model = _adapters(config, stored.shapes)
    alpha = config.lora.lora_alpha
    content = {key: right[0] for key, right in _ONLY.items() if right[0] is not None} | {
        "base_model_name_or_path": convert.source_of(config.load_parameters_path),
        "inference_mode": True,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "r": _rank(stored.shapes),
        "target_modules": _modules(config, model),
    }
    stem, size = ADAPTERS.removesuffix(".safetensors"), sys.maxsize  # in one file
    kind = tensors.DTYPES[dtype]
    files = export.write_variables(directory, model, stored, lambda _: kind, size, stem=stem)
    export.put(directory / ADAPTER_CONFIG, content)
    return files


def _rank(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return next((shape[-1] for name, shape in shapes.items() if name.endswith(_A)), 0)


def _adapters(config: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Variable, ...]:
    """Returns the variables of the adapters among ``shapes``.

    Raises:
      ConfigError: there are none, or their model has no counterpart in transformers.
    """
    rank = _rank(shapes)
    if not rank:
        raise ConfigError("lora.enable_lora", config.lora.enable_lora, "there are no adapters")
    model = variables(_architecture(config), config.scan_layers)
    found = [half for one in model if f"{one.name}_lora_a" in shapes for half in one.adapter(rank)]
    export.check_weights(found, {name: shapes[name] for name in filter(is_adapter, shapes)})
    return tuple(found)


def _architecture(config: Any) -> Architecture:
    """Returns the architecture of the base.

    Raises:
      ConfigError: it has no counterpart in transformers, or is not known well enough.
    """
    found, path = of_maxtext(config), config.load_parameters_path
    if (said := convert.described(BASE_KEY, path)) is not None:
        return replace(found, query_scalar=said.query_scalar)  # which a query kernel may hold
    if found.block == "gemma2":
        reason = "must be a model that rlax convert has written: MaxText's keys lack "
        raise ConfigError(BASE_KEY, path, f"{reason}query_pre_attn_scalar of Gemma 2")
    return found


def _modules(config: Any, model: tuple[Variable, ...]) -> list[str]:
    """Returns ``target_modules``: names of modules, or paths of those not adapted in all layers."""
    paths = _paths(model)
    layers = Counter(path.rpartition(".")[2] for path in paths)
    whole = {name for name, count in layers.items() if count == _architecture(config).layers}
    return sorted({name if (name := p.rpartition(".")[2]) in whole else p for p in paths})


def _paths(model: tuple[Variable, ...]) -> list[str]:
    """Returns the modules of the adapters by their paths in the model of transformers."""
    return [
        name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        for one in model
        for name in one.tensors
        if name.endswith(".lora_A.weight")
    ]
