"""The model that vLLM's server is started with, and the server's arguments. Imports MaxText."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxtext_overrides.config.loading import load_to_check, passed_on
from maxtext_overrides.models.huggingface_config import content_of
from maxtext_overrides.models.maxtext_keys import of_maxtext
from maxtext_overrides.models.rules import variables
from rlax_plugin.api import BuildContext, ConfigError
from rlax_vllm.options import VllmConfig

_BLOCK = 128  # tokens of a block of vLLM's cache, at most
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of vLLM's attention on CPUs (vllm/v1/attention/backends/cpu_attn.py, 0.32.0).
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)


@dataclass(frozen=True, slots=True)
class Model:
    """A run's model as vLLM sees it.

    Attributes:
      content: content of config.json.
      shapes: tensor name -> shape, of all its tensors.
      dtype: dtype that vLLM computes in.
      cache_bytes: size of the key-value cache.
    """

    content: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    cache_bytes: int

    @property
    def vocabulary(self) -> int:
        return int(self.content["vocab_size"])

    @property
    def weights_bytes(self) -> int:
        """Bytes of the tensors in the dtype that vLLM computes in."""
        return sum(math.prod(shape) for shape in self.shapes.values()) * _BYTES[self.dtype]

    @property
    def head_dim(self) -> int:
        heads = int(self.content["num_attention_heads"])
        return int(self.content.get("head_dim") or int(self.content["hidden_size"]) // heads)

    def write(self, directory: Path) -> None:
        """Makes a directory that vLLM starts with; the weights come later."""
        directory.mkdir(mode=0o700)
        (directory / "config.json").write_text(json.dumps(self.content), encoding="utf-8")


def model_of(config: VllmConfig, context: BuildContext) -> Model:
    """Describes the run's model.

    Raises:
      ConfigError: there is no MaxText config, or the model is of no family that can be exported, or
        vLLM cannot compute in MaxText's dtype.
    """
    given = context.config
    if given is None:
        raise ConfigError("rlax.rollouts.engine", "vllm", "needs a MaxText config")
    with passed_on(given):
        maxtext = load_to_check(given)
    # As versions are converted: neither reads the config.json of a tokenizer.
    architecture = of_maxtext(maxtext)
    dtype = config.dtype or str(maxtext.dtype)
    if dtype not in _BYTES:
        reason = f"vLLM computes in one of {', '.join(_BYTES)}: set it"
        raise ConfigError("rlax.rollouts.engine.dtype", dtype, reason)
    tokens = context_tokens(context)
    content = content_of(architecture, dtype)
    content["max_position_embeddings"] = max(tokens, architecture.positions)
    shapes: dict[str, tuple[int, ...]] = {}
    for variable in variables(architecture, maxtext.scan_layers):
        shapes |= variable.tensor_shapes
    model = Model(content, shapes, dtype, config.cache_bytes or 0)
    if config.cache_bytes is None:
        layers, heads = content["num_hidden_layers"], content["num_key_value_heads"]
        rows = (context.section.rollouts.slots + 1) * (math.ceil(tokens / _BLOCK) * _BLOCK)
        size = 2 * layers * heads * model.head_dim * _BYTES[dtype] * rows
        model = Model(content, shapes, dtype, size)
    return model


def context_tokens(context: BuildContext) -> int:
    """Longest sequence of the server: that of the run, and a token that ``score`` needs."""
    section = context.section
    return section.max_context_tokens + section.rollouts.max_new_tokens + 1


def server_arguments(
    config: VllmConfig, context: BuildContext, model: Model, directory: str
) -> list[str]:
    """The arguments of vLLM's server; those of the user come last."""
    arguments: dict[str, Any] = {
        "model": directory,
        "served-model-name": "rlax",
        "load-format": "dummy",
        "dtype": model.dtype,
        "max-model-len": context_tokens(context),
        "max-num-seqs": context.section.rollouts.slots,
        "kv-cache-memory-bytes": model.cache_bytes,
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "worker-extension-cls": "rlax_vllm_inside.Extension",
        "seed": 0,
        "skip-tokenizer-init": True,
        "enable-scale-out": True,
        "disable-log-stats": True,
        "disable-uvicorn-access-log": True,
    }
    if context.maxtext.get("hardware") == "cpu":
        arguments["enforce-eager"] = True
    return [
        f"--{name}" if value is True else f"--no-{name}" if value is False else f"--{name}={value}"
        for name, value in (arguments | config.arguments).items()
    ]
