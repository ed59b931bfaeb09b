"""Reads a GGUF file: the model that its header describes, and its tensors, dequantised.

llama.cpp's converter reorders the rows of query and key for models of the architecture ``llama``,
so that neighbouring entries of a head are rotated together. That is undone here.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from maxtext_overrides.models.architecture import LLAMA3, Architecture
from maxtext_overrides.models.families import FAMILIES
from maxtext_overrides.models.gguf_header import DamagedHeaderError, GgufHeader, GgufTensor
from maxtext_overrides.models.huggingface_config import check_sizes
from maxtext_overrides.models.tensors import shown
from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.text.harmless import one_line

_FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Fields of an architecture as a header calls them, below the name of the architecture.
_KEYS = {
    "layers": "block_count",
    "width": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "mlp_width": "feed_forward_length",
    "positions": "context_length",
    "norm_epsilon": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_ROPE_FACTORS = "rope_freqs.weight"
# Every key below an architecture's name that is known: those that are read, and those that must
# have one of these values, with which they change nothing that llama.cpp computes.
_READ = frozenset(
    (
        *_KEYS.values(),
        "attention.value_length",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scale_linear",
        "attention.layer_norm_epsilon",  # the last four say nothing of what is computed
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "vocab_size",
    )
)
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.scale": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "tensor_data_layout": ("Meta AI original pth",),  # neighbours are rotated together
    "use_parallel_residual": (False,),
}
_LONGEST_NAME = 64  # characters of an architecture
_LARGEST = 1 << 31  # whole number of a header: more than any size of a model


class GgufFile:
    """One GGUF file as a ``TensorSource``.

    Raises:
      ConfigError: the header is broken, or a tensor's type cannot be dequantised.
    """

    def __init__(self, path: Path):
        self._path = path
        try:
            self._header = GgufHeader(path)
        except (DamagedHeaderError, OSError) as error:
            reason = f"is truncated or no GGUF file: {one_line(str(error))}"
            raise ConfigError("SOURCE", str(path), reason) from None
        self._tensors: dict[str, GgufTensor] = {}
        for tensor in self._header.tensors:
            self._add(tensor)

    def _add(self, tensor: GgufTensor) -> None:
        if tensor.name == _ROPE_FACTORS:
            return
        if not _is_readable(tensor.kind):
            reason = (
                f"the tensor {tensor.name} has the type {tensor.kind.name}, which cannot be read"
            )
            raise ConfigError("SOURCE", str(self._path), reason)
        name = _name(tensor.name)
        if (other := self._tensors.get(name)) is not None:
            reason = f"the tensors {shown(other.name)} and {shown(tensor.name)} are both one"
            raise ConfigError("SOURCE", str(self._path), reason)
        self._tensors[name] = tensor

    @property
    def where(self) -> str:
        return str(self._path)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    @property
    def doubles(self) -> list[str]:
        double = gguf.GGMLQuantizationType.F64
        return [name for name, tensor in self._tensors.items() if tensor.kind == double]

    def read(self, name: str) -> np.ndarray:
        """See ``TensorSource``; float32."""
        value = self._values_of(self._tensors[name])
        heads = {"q_proj": "head_count", "k_proj": "head_count_kv"}.get(name.split(".")[-2])
        if self._architecture != "llama" or heads is None:
            return value
        heads = self._number(f"attention.{heads}", self._number("attention.head_count"))
        pairs = value.reshape(int(heads), -1, 2, *value.shape[1:])
        return pairs.swapaxes(1, 2).reshape(value.shape)

    def value(self, key: str, otherwise: Any = None) -> Any:
        """Returns a value of the header.

        Raises:
          ConfigError: the value cannot be decoded.
        """
        try:
            found = self._header.value(key)
        except ValueError as error:
            raise ConfigError(f"{key} in {self._path}", None, f"is broken: {error}") from None
        return otherwise if found is None else found

    def _values_of(self, tensor: GgufTensor) -> np.ndarray:
        """Returns a tensor's values, float32."""
        try:
            # Read, not mapped: pages of a map would count as this process's memory.
            raw = np.fromfile(self._path, np.uint8, tensor.nbytes, offset=tensor.offset)
        except OSError as error:
            reason = f"the tensor {tensor.name} cannot be read: {error.strerror or error}"
            raise ConfigError("SOURCE", str(self._path), reason) from None
        if raw.size != tensor.nbytes:
            reason = f"the tensor {tensor.name} is not whole any more: the file has changed"
            raise ConfigError("SOURCE", str(self._path), reason)
        # A damaged scale of a block makes NaN, which is detected when the weights are written.
        with np.errstate(over="ignore", invalid="ignore"):
            value = dequantize(raw.reshape(*tensor.shape[:-1], -1), tensor.kind)
            return value.astype(np.float32, copy=False).reshape(tensor.shape)

    @property
    def _architecture(self) -> str:
        key = "general.architecture"
        value = self.value(key)
        if not isinstance(value, str) or len(value) > _LONGEST_NAME:
            raise ConfigError(f"{key} in {self._path}", value, "must be the name of one")
        return value

    def _number(self, name: str, otherwise: float | None = None) -> float:
        key = f"{self._architecture}.{name}"
        value = self.value(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float):
            what = "is missing" if value is None else "must be one number"
            raise ConfigError(f"{key} in {self._path}", value, what)
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) > _LARGEST):
            raise ConfigError(f"{key} in {self._path}", value, "is too large")
        return value

    @property
    def keys(self) -> dict[str, str]:
        """Field of an architecture -> its key in this header."""
        return {field: f"{self._architecture}.{key}" for field, key in _KEYS.items()}

    def architecture(self) -> Architecture:
        """Returns the architecture that the header describes.

        Raises:
          ConfigError: the family is not supported, or it has something that MaxText cannot express.
        """
        named = self._architecture
        if named not in _FAMILIES:
            reason = f"{alternatives(named, _FAMILIES)} (the architectures of GGUF files)"
            raise ConfigError(f"general.architecture in {self._path}", named, reason)
        self._check_keys(named)
        width, heads = (
            int(self._number("embedding_length")),
            int(self._number("attention.head_count")),
        )
        head_dim = int(self._number("attention.key_length", width // max(heads, 1)))
        for name in ("attention.value_length", "rope.dimension_count"):
            if (value := self._number(name, head_dim)) != head_dim:
                reason = f"must be the width of a head, {head_dim}: nothing else is supported"
                raise ConfigError(f"{named}.{name} in {self._path}", value, reason)
        embedding = self.shapes.get("model.embed_tokens.weight", (0, 0))
        theta = self._number("rope.freq_base", 10000.0)
        if theta != int(theta):
            reason = "must be a whole number, as MaxText wants it"
            raise ConfigError(f"{named}.rope.freq_base in {self._path}", theta, reason)
        scaling = self.value(f"{named}.rope.scaling.type", "linear")  # as llama.cpp reads it
        if scaling not in ("none", "linear"):
            reason = "must be none or linear: nothing else is supported"
            raise ConfigError(f"{named}.rope.scaling.type in {self._path}", scaling, reason)
        factor = 1.0
        if scaling == "linear":  # rope.scale_linear is its older name
            older = self._number("rope.scale_linear", 0.0)
            factor = self._number("rope.scaling.factor", older) or 1.0
        llama3 = self._llama3(int(theta), head_dim)
        # A float32 of the header: its shortest spelling, 1e-05, is what the model's config said.
        epsilon = float(str(np.float32(self._number("attention.layer_norm_rms_epsilon"))))
        family = _FAMILIES[named]
        found = Architecture(
            family=family,
            block=FAMILIES[family].block,
            layers=int(self._number("block_count")),
            width=width,
            heads=heads,
            kv_heads=int(self._number("attention.head_count_kv", heads)),
            head_dim=head_dim,
            mlp_width=int(self._number("feed_forward_length")),
            vocab_size=embedding[0],
            tied="lm_head.weight" not in self.shapes,
            qkv_bias=FAMILIES[family].qkv_bias,
            qk_norm=FAMILIES[family].qk_norm,
            norm_epsilon=epsilon,
            rope_theta=int(theta),
            rope="llama3" if llama3 else "linear" if factor != 1.0 else "default",
            rope_factor=llama3 or factor,
            positions=int(self._number("context_length")),
        )
        check_sizes(found, self._path, self.keys)
        return found

    def _check_keys(self, named: str) -> None:
        """Raises ConfigError for a key that may change what the model computes."""
        for key in sorted(self._header.keys):  # llama.cpp reads those of no other architecture
            name = key.removeprefix(f"{named}.")
            if name == key or name in _READ:
                continue
            value = self.value(key)
            if name not in _WITHOUT_EFFECT:
                reason = "is not known: it may change what the model computes"
            elif value in _WITHOUT_EFFECT[name]:
                continue
            else:
                neutral = " or ".join(map(str, _WITHOUT_EFFECT[name]))
                reason = f"must be {neutral}: nothing else is supported"
            raise ConfigError(f"{one_line(key, 128)} in {self._path}", value, reason)
        for key, right in (("general.type", "model"), ("split.count", 1)):
            if (value := self.value(key, right)) not in (right, 0):
                raise ConfigError(f"{key} in {self._path}", value, f"must be {right}")

    def _llama3(self, theta: int, head_dim: int) -> float:
        """Returns the factor of Llama 3.1's rotary positions; 0 if the file has none.

        Raises:
          ConfigError: the file has other rotary factors.
        """
        found = [tensor for tensor in self._header.tensors if tensor.name == _ROPE_FACTORS]
        if not found:
            return 0.0
        pairs = head_dim // 2
        if found[0].shape != (pairs,) or not _is_readable(found[0].kind):
            reason = f"must be {pairs} numbers, one for each pair of a head's entries"
            raise ConfigError(f"{_ROPE_FACTORS} in {self._path}", None, reason)
        factors = self._values_of(found[0]).astype(np.float64)
        if not np.isfinite(factors).all():
            raise ConfigError(f"{_ROPE_FACTORS} in {self._path}", None, "must be finite")
        wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
        low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
        ratio = LLAMA3["original_max_position_embeddings"] / wavelengths
        smooth = np.clip((ratio - low) / (high - low), 0, 1)
        # The longest wavelengths, of which there are some with every usual theta, have it whole.
        whole = float(np.float32(factors.max(initial=1.0)))
        expected = 1 / ((1 - smooth) / whole + smooth)
        if not np.allclose(factors, expected, rtol=1e-3):
            said = ", ".join(f"{key} {right:g}" for key, right in LLAMA3.items())
            reason = f"MaxText has llama3 scaling only with {said}"
            raise ConfigError(f"{_ROPE_FACTORS} in {self._path}", None, reason)
        return whole


@cache
def _is_readable(kind: gguf.GGMLQuantizationType) -> bool:
    """True if tensors of a type can be dequantised."""
    try:
        dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (NotImplementedError, KeyError):
        return False
    return True


def _name(name: str) -> str:
    """Returns the Hugging Face name of a tensor; unknown names are returned unchanged."""
    match = re.fullmatch(r"blk\.(\d{1,9})\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _OF_LAYER:
        return _WHOLE.get(name, name)
    return f"model.layers.{int(match[1])}.{_OF_LAYER[match[2]]}.{match[3]}"
