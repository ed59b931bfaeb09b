"""config.json of a Hugging Face directory: read into an ``Architecture``, and written from one.

The defaults of what a config.json leaves out are those of ``transformers``, whose config classes
also check the types. What MaxText cannot express is rejected by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxtext_overrides.models.architecture import LLAMA3, Architecture, Rope
from rlax_plugin.errors import ConfigError, alternatives

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_LARGEST_FILE = 16 << 20  # bytes of a config.json
_MOST_LAYERS = 1000
_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


def read(path: Path) -> dict[str, Any]:
    """What a config.json says.

    Raises:
      ConfigError: it is missing, unreadable, no JSON, or no object.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ConfigError("SOURCE", str(path), "is too large to be a config.json")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("SOURCE", str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("SOURCE", str(path), f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("SOURCE", str(path), "must hold a JSON object")
    return found


def family_of(content: Mapping[str, Any], path: Path) -> str:
    """The architecture that a config.json names.

    Raises:
      ConfigError: it names none, or several.
    """
    named = content.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        reason = "must be a list with the name of one architecture, such as LlamaForCausalLM"
        raise ConfigError(f"architectures in {path}", named, reason)
    return named[0]


def architecture(content: Mapping[str, Any], path: Path) -> Architecture:
    """The architecture that a config.json describes.

    Args:
      content: of the file.
      path: of it, for messages.

    Raises:
      ConfigError: the family is not one of ``FAMILIES``, a key is missing or wrong, or the model
        has something that MaxText cannot express.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family = family_of(content, path)
    if family not in FAMILIES:
        raise ConfigError(f"architectures in {path}", family, alternatives(family, FAMILIES))
    for key in _NEEDED:
        if content.get(key) is None:
            raise ConfigError(f"{key} in {path}", None, "is missing")
    try:
        known = CONFIG_MAPPING[FAMILIES[family]].from_dict(dict(content))
    except (StrictDataclassError, TypeError, ValueError, KeyError, AttributeError) as error:
        reason = f"is no config of {family}: {' '.join(str(error).split())}"
        raise ConfigError("SOURCE", str(path), reason) from None
    values = known.to_dict()
    _check_features(values, path)
    rope, theta, factor = _rope(values, path)
    heads, width = values["num_attention_heads"], values["hidden_size"]
    found = Architecture(
        family=family,
        layers=values["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or width // max(heads, 1),
        mlp_width=values["intermediate_size"],
        vocab_size=values["vocab_size"],
        tied=bool(values["tie_word_embeddings"]),
        qkv_bias=family == "Qwen2ForCausalLM",
        qk_norm=family == "Qwen3ForCausalLM",
        norm_epsilon=float(values["rms_norm_eps"]),
        rope_theta=theta,
        rope=rope,
        rope_factor=factor,
        positions=values["max_position_embeddings"],
    )
    check_sizes(found, path)
    return found


def check_sizes(found: Architecture, path: Path) -> None:
    """Raises ConfigError unless the sizes are positive and go together."""
    sizes = ("layers", "width", "heads", "kv_heads", "head_dim", "mlp_width", "vocab_size")
    for name in (*sizes, "positions", "norm_epsilon", "rope_theta"):
        if not getattr(found, name) > 0:
            raise ConfigError(f"{name} in {path}", getattr(found, name), "must be above 0")
    if found.layers > _MOST_LAYERS:
        raise ConfigError(f"layers in {path}", found.layers, f"must be at most {_MOST_LAYERS}")
    if found.heads % found.kv_heads:
        reason = f"must divide the {found.heads} query heads"
        raise ConfigError(f"kv_heads in {path}", found.kv_heads, reason)
    if found.head_dim % 2:
        raise ConfigError(f"head_dim in {path}", found.head_dim, "must be even")


def _check_features(values: Mapping[str, Any], path: Path) -> None:
    """Rejects by name what MaxText cannot express."""
    only = {
        "hidden_act": ("silu", "swish"),
        "mlp_bias": (False, None),
        # Of Llama and Qwen3: it adds a bias to the output projection too. Qwen2's are its own.
        "attention_bias": (False, None),
        "partial_rotary_factor": (1.0, None),
    }
    for key, right in only.items():
        if values.get(key) not in right:
            reason = f"is not supported; must be {json.dumps(right[0])}"
            raise ConfigError(f"{key} in {path}", values[key], reason)
    if values.get("quantization_config"):
        reason = "quantised weights are not supported: convert the original, or a GGUF file"
        raise ConfigError(f"quantization_config in {path}", None, reason)
    window = values.get("sliding_window")
    kinds = values.get("layer_types")
    windowed = "sliding_attention" in kinds if isinstance(kinds, list) else True
    if window and windowed and window < values["max_position_embeddings"]:
        reason = (
            "sliding windows are not supported. Sequences of up to that many tokens do not need "
            "it: for those, set it to null in a copy"
        )
        raise ConfigError(f"sliding_window in {path}", window, reason)


def _rope(values: Mapping[str, Any], path: Path) -> tuple[Rope, int, float]:
    """(kind, theta, factor) of the rotary positions."""
    rope = values.get("rope_parameters") or {}
    where = f"rope_parameters in {path}"
    theta = rope.get("rope_theta")
    if not isinstance(theta, int | float) or theta != int(theta):
        raise ConfigError(where, rope, "rope_theta must be a whole number, as MaxText wants it")
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ConfigError(where, rope, "partial rotary positions are not supported")
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return "default", int(theta), 1.0
    if kind == "linear" and isinstance(rope.get("factor"), int | float):
        return "linear", int(theta), float(rope["factor"])
    if kind == "llama3":
        if all(rope.get(key) == right for key, right in LLAMA3.items()):
            return "llama3", int(theta), 1.0
        said = ", ".join(f"{key} {right:g}" for key, right in LLAMA3.items())
        raise ConfigError(where, rope, f"MaxText has llama3 scaling only with {said}")
    raise ConfigError(where, rope, "rope_type must be default, linear or llama3")


def content_of(found: Architecture, dtype: str = "float32") -> dict[str, Any]:
    """What a config.json says of an architecture; the inverse of ``architecture``.

    Args:
      dtype: of the tensors beside it.
    """
    rope: dict[str, Any] = {"rope_type": found.rope, "rope_theta": float(found.rope_theta)}
    if found.rope == "linear":
        rope["factor"] = found.rope_factor
    elif found.rope == "llama3":
        rope |= LLAMA3
    content: dict[str, Any] = {
        "architectures": [found.family],
        "model_type": FAMILIES[found.family],
        "dtype": dtype,
        "hidden_size": found.width,
        "intermediate_size": found.mlp_width,
        "num_hidden_layers": found.layers,
        "num_attention_heads": found.heads,
        "num_key_value_heads": found.kv_heads,
        "head_dim": found.head_dim,
        "vocab_size": found.vocab_size,
        "hidden_act": "silu",
        "max_position_embeddings": found.positions,
        "rms_norm_eps": found.norm_epsilon,
        "tie_word_embeddings": found.tied,
        "rope_parameters": rope,
        # Readers older than ``rope_parameters`` know these two.
        "rope_theta": float(found.rope_theta),
    }
    if found.rope != "default":
        content["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
    if found.family == "MistralForCausalLM":
        content["sliding_window"] = None  # its default is 4096
    return content
