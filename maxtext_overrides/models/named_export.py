"""Models that MaxText has by name, such as Gemma 2, on their way out; see ``named_model``.

MaxText's own command keeps all tensors in memory. Its tables and its function for one variable are
used here one variable at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from maxtext_overrides.config.memory import abstract_model
from maxtext_overrides.upstream.declared.models import NAMED_EXPORTS, NAMED_MODELS
from maxtext_overrides.upstream.lean_imports import unavailable
from maxtext_overrides.upstream.signatures import check
from maxtext_overrides.variables import published
from rlax_plugin.errors import ConfigError

OVERRIDES = NAMED_EXPORTS
# MaxText's key of each size that a config.json of a named model says.
_SIZES = {
    "hidden_size": "emb_dim",
    "num_attention_heads": "num_query_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
}

Process = Callable[[np.ndarray], Sequence[tuple[str, np.ndarray]]]


@dataclass(frozen=True, slots=True)
class NamedVariable:
    """A variable that MaxText's function takes apart.

    Attributes:
      name: of the variable.
      shape: of the variable.
      tensor_shapes: name -> shape of the tensors in it.
    """

    name: str
    shape: tuple[int, ...]
    tensor_shapes: Mapping[str, tuple[int, ...]]
    _process: Process

    def to_tensors(self, value: np.ndarray, dtype: np.dtype) -> Iterator[tuple[str, np.ndarray]]:
        """See ``rules.Variable.to_tensors``."""
        found = dict(self._process(value))
        for name in self.tensor_shapes:
            yield name, np.ascontiguousarray(found[name], dtype)


def find(config: Any) -> tuple[dict[str, Any], list[NamedVariable]] | None:
    """A named model's config.json and variables; None if MaxText cannot export that model.

    Args:
      config: MaxText's, validated.

    Raises:
      ConfigError: MaxText's keys make it another model than the one of that name, or a variable of
        it is not simply one or several tensors.
      OverrideError: MaxText is not a tested version.
    """
    with unavailable("tensorflow", "google.cloud.aiplatform"):
        from maxtext.checkpoint_conversion.utils import hf_model_configs, hf_shape, param_mapping
        from maxtext.checkpoint_conversion.utils.utils import process_maxtext_param

    name = config.model_name
    tables = (hf_model_configs.HF_MODEL_CONFIGS, hf_shape.HF_SHAPE, param_mapping.PARAM_MAPPING)
    if any(name not in table for table in tables):
        return None
    check((*OVERRIDES, *NAMED_MODELS), config.allow_untested)
    known = hf_model_configs.HF_MODEL_CONFIGS[name].to_dict()
    for key, ours in _SIZES.items():
        if known.get(key) is not None and getattr(config, ours) != known[key]:
            reason = f"must be {known[key]} for MaxText to export a model named {name}"
            raise ConfigError(ours, getattr(config, ours), reason)
    scanned = config.scan_layers
    mapping = param_mapping.PARAM_MAPPING[name](known, config, scanned)
    hooks = param_mapping.HOOK_FNS[name](known, config, scanned, saving_to_hf=True)
    shapes = hf_shape.HF_SHAPE[name](known)
    variables = []
    for variable, value in published(nnx.state(abstract_model(config, "train"))).items():
        key = f"params-{variable.replace('.', '-')}"
        tensors = _flat(mapping.get(key))
        if not tensors or any(tensor not in shapes for tensor in tensors):
            reason = f"MaxText has no simple rule for its variable {variable}: it is not supported"
            raise ConfigError("model_name", name, reason)

        def process(value: np.ndarray, key: str = key) -> Sequence[tuple[str, np.ndarray]]:
            import jax.numpy as jnp

            return process_maxtext_param(key, jnp.asarray(value), mapping, hooks, shapes, config)

        wanted = {tensor: tuple(shapes[tensor]) for tensor in tensors}
        variables.append(NamedVariable(variable, tuple(value.shape), wanted, process))
    plain = json.loads(hf_model_configs.HF_MODEL_CONFIGS[name].to_json_string(use_diff=False))
    return plain, variables


def _flat(tensors: Any) -> list[str]:
    """Names in nested lists."""
    if isinstance(tensors, str):
        return [tensors]
    return [name for one in tensors for name in _flat(one)] if isinstance(tensors, list) else []
