"""Models that MaxText has by name and can convert itself, such as Gemma 2.

A config.json is that of one of them if it says the sizes that MaxText has for that name. Its tables
say which tensors a variable consists of, and its functions put them together; they are called here
one variable at a time, because its own command keeps all of them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maxtext_overrides.models.agreement import loaded_model
from maxtext_overrides.models.huggingface_config import FAMILIES
from maxtext_overrides.models.safetensors_directory import SafetensorsDirectory
from maxtext_overrides.models.tensors import compare
from maxtext_overrides.upstream.declared.models import NAMED_MODELS
from maxtext_overrides.upstream.lean_imports import unavailable
from maxtext_overrides.upstream.signatures import check
from rlax_plugin.errors import ConfigError

OVERRIDES = NAMED_MODELS
SIZES = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


@dataclass(frozen=True, slots=True)
class NamedVariable:
    """A variable that MaxText's functions put together.

    Attributes:
      name: of the variable.
      shape: of the variable.
    """

    name: str
    shape: tuple[int, ...]
    _loader: Callable[[Callable[[str], np.ndarray]], Callable[[], Any]]

    def of_tensors(self, read: Callable[[str], np.ndarray], dtype: np.dtype) -> np.ndarray:
        """See ``rules.Variable.of_tensors``."""
        found = self._loader(lambda name: read(name).astype(np.float32, copy=False))()
        return np.asarray(found).astype(dtype, copy=False)


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model of MaxText's, whose tensors are there.

    Attributes:
      keys: MaxText's keys of the model.
      source: its tensors.
      variables: what they become.
      vocab_size: of MaxText's model, which may be padded.
    """

    keys: Mapping[str, Any]
    source: SafetensorsDirectory
    variables: Sequence[NamedVariable]
    vocab_size: int


def examine(content: Mapping[str, Any], family: str, path: Path, scanned: bool) -> NamedModel:
    """The model that a config.json describes.

    Args:
      content: of config.json.
      family: which it names.
      path: of the directory.
      scanned: ``scan_layers``.

    Raises:
      ConfigError: MaxText has no such model, or its tensors are not there.
      OverrideError: MaxText is not a tested version.
    """
    with unavailable("tensorflow", "google.cloud.aiplatform"):
        from maxtext.checkpoint_conversion import to_maxtext
        from maxtext.checkpoint_conversion.utils import hf_model_configs, hf_shape, param_mapping

    check(OVERRIDES)
    known = {
        name: config.to_dict()
        for name, config in dict(hf_model_configs.HF_MODEL_CONFIGS).items()
        if name in hf_shape.HF_SHAPE and name in param_mapping.PARAM_MAPPING
    }
    name = _name(known, content, family, path)
    source = SafetensorsDirectory(path)
    expected = {key: tuple(v) for key, v in hf_shape.HF_SHAPE[name](known[name]).items()}
    compare(source, expected, family)
    keys = _keys(name) | {"scan_layers": scanned}
    config, shapes = loaded_model(keys, str(path))
    mapping = param_mapping.PARAM_MAPPING[name](known[name], config, scanned)
    hooks = param_mapping.HOOK_FNS[name](known[name], config, scanned, saving_to_hf=False)
    found = []
    for variable, shape in shapes.items():
        key = f"params-{variable.replace('.', '-')}"
        if key not in mapping:
            reason = f"MaxText has no simple rule for its variable {variable}: it is not supported"
            raise ConfigError(f"architectures in {path / 'config.json'}", family, reason)

        def loader(read: Callable[[str], np.ndarray], key: str = key, shape: Any = shape) -> Any:
            return to_maxtext._get_hf_loading_function(
                mapping[key], read, hooks.get(key), shape, config, key
            )

        found.append(NamedVariable(variable, shape, loader))
    return NamedModel(keys, source, found, config.vocab_size)


def _keys(name: str) -> dict[str, Any]:
    """MaxText's keys of the model; those of a smaller one in tests."""
    return {"model_name": name}


def _name(
    known: Mapping[str, Mapping[str, Any]], content: Mapping[str, Any], family: str, path: Path
) -> str:
    """The first of the known models with the sizes of a config.json.

    Raises:
      ConfigError: there is none.
    """
    for name, config in known.items():
        if all(config.get(key) == content.get(key) for key in SIZES):
            return name
    said = ", ".join(f"{key} {content.get(key)}" for key in SIZES)
    reason = (
        f"is not supported. Supported are {', '.join(FAMILIES)} of any size, and these models of "
        f"MaxText: {', '.join(known)}. None of them has {said}"
    )
    raise ConfigError(f"architectures in {path / 'config.json'}", family, reason)
