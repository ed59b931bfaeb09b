"""Reads a Hugging Face config.json into an ``Architecture``, and writes one from it.

Keys missing in a config.json get the defaults of ``transformers``, whose config classes also check
the types. Everything that MaxText would compute differently is rejected in one message.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from maxtext_overrides.models.architecture import GEMMA3_PERIOD, Architecture
from maxtext_overrides.models.families import FAMILIES, Family
from maxtext_overrides.models.rotary import rope_content, rotary_positions
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line

_LARGEST_FILE = 16 << 20  # bytes of a config.json
_MOST_LAYERS = 1000
_TOO_MANY = f"must be at most {_MOST_LAYERS}"
# The config classes of transformers raise some of these about values of a strange type.
_STRANGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_LONGEST = 200  # characters of such an error
_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
# Fields of an architecture as a config.json calls them.
_KEYS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "mlp_width": "intermediate_size",
    "positions": "max_position_embeddings",
    "norm_epsilon": "rms_norm_eps",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "tied": "tie_word_embeddings",
    "window": "sliding_window",
    "query_scalar": "query_pre_attn_scalar",
    "attention_cap": "attn_logit_softcapping",
    "logits_cap": "final_logit_softcapping",
}
_POSITIVE = (
    *("layers", "width", "heads", "kv_heads", "head_dim", "mlp_width", "vocab_size"),
    *("positions", "norm_epsilon", "rope_theta"),
)
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read(path: Path) -> dict[str, Any]:
    """Returns the content of a config.json.

    Raises:
      ConfigError: it is missing, unreadable, not JSON, or not an object.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ConfigError("SOURCE", str(path), "is too large to be a config.json")
        found = json.loads(
            path.read_text(encoding="utf-8"),
            object_pairs_hook=_object,
            parse_float=_number,
            parse_constant=_number,
        )
    except OSError as error:
        raise ConfigError("SOURCE", str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("SOURCE", str(path), f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("SOURCE", str(path), "must hold a JSON object")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object after checking for duplicate keys, for which readers choose differently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {one_line(twice, 64)} appears twice")
    return found


def _number(text: str) -> float:
    """Returns a finite number; NaN and 1e400 are rejected."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{one_line(text, 64)} is no finite number")
    return number


def family_of(content: Mapping[str, Any], path: Path) -> str:
    """Returns the architecture that a config.json names.

    Raises:
      ConfigError: it names none, several, or one that is not supported.
    """
    named = content.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        reason = "must be a list with the name of one architecture, such as LlamaForCausalLM"
        raise ConfigError(f"architectures in {path}", named, reason)
    if named[0] not in FAMILIES:
        reason = f"is not supported; supported are {', '.join(FAMILIES)}"
        raise ConfigError(f"architectures in {path}", named[0], reason)
    return named[0]


def architecture(content: Mapping[str, Any], path: Path) -> Architecture:
    """Returns the architecture that a config.json describes.

    Args:
      content: content of the file.
      path: path of the file, for messages.

    Raises:
      ConfigError: the family is not one of ``FAMILIES``, a key is missing, wrong or unknown, or the
        model has something that MaxText cannot express. It names all of the keys.
    """
    try:
        return _architecture(content, path)
    except _STRANGE as error:
        reason = f"has a value that no config has: {one_line(repr(error), _LONGEST)}"
        raise ConfigError("SOURCE", str(path), reason) from error


def _architecture(content: Mapping[str, Any], path: Path) -> Architecture:
    name = family_of(content, path)
    family = FAMILIES[name]
    values = _complete(content, name, path)
    rope, problems = rotary_positions(content, values, family, path)
    problems = [*_problems(content, values, family, path), *problems]
    if problems:
        first, *others = problems
        raise first.followed_by([str(other) for other in others])
    heads, width = values["num_attention_heads"], values["hidden_size"]
    if values.get("head_dim", heads) is None and name != "MixtralForCausalLM":
        # The other classes of transformers take the null for a width, and fail.
        reason = f"is null, and transformers makes no {name} of that: leave it out, or give a width"
        raise ConfigError(f"head_dim in {path}", None, reason)
    head_dim = values.get("head_dim") or width // max(heads, 1)
    gemma, has_experts = family.block.startswith("gemma"), family.block == "qwen3_moe"
    found = Architecture(
        family=name,
        block=family.block,
        layers=values["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=values.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        mlp_width=values.get("moe_intermediate_size") or values["intermediate_size"],
        vocab_size=values["vocab_size"],
        tied=bool(values["tie_word_embeddings"]),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        norm_epsilon=float(values["rms_norm_eps"]),
        rope_theta=rope.theta,
        rope=rope.kind,
        rope_factor=rope.factor,
        positions=values["max_position_embeddings"],
        # transformers makes num_experts this one.
        experts=values["num_local_experts"] if has_experts else 0,
        experts_per_token=values["num_experts_per_tok"] if has_experts else 0,
        window=values["sliding_window"] if gemma else 0,
        local_rope_theta=rope.local_theta,
        query_scalar=float(values["query_pre_attn_scalar"]) if gemma else 0.0,
        attention_cap=values.get("attn_logit_softcapping") or 0.0,
        logits_cap=values.get("final_logit_softcapping") or 0.0,
    )
    check_sizes(found, path)
    return found


def _complete(content: Mapping[str, Any], family: str, path: Path) -> dict[str, Any]:
    """Returns the values of a config.json, completed with the defaults of transformers."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for key in _NEEDED:
        if content.get(key) is None:
            raise ConfigError(f"{key} in {path}", None, "is missing")
    layers = content["num_hidden_layers"]
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        # The classes would make lists of that length.
        raise ConfigError(f"num_hidden_layers in {path}", layers, _TOO_MANY)
    kind = FAMILIES[family].model_type
    if content.get("model_type", kind) != kind:
        reason = f"must be {kind}, which is that of {family}"
        raise ConfigError(f"model_type in {path}", content["model_type"], reason)
    try:
        known = CONFIG_MAPPING[kind].from_dict(json.loads(json.dumps(content)))
    except (StrictDataclassError, TypeError, ValueError, KeyError, AttributeError) as error:
        reason = f"is no config of {family}: {' '.join(str(error).split())}"
        raise ConfigError("SOURCE", str(path), reason) from None
    return {**content, **known.to_dict()}


def check_sizes(found: Architecture, path: Path, keys: Mapping[str, str] = _KEYS) -> None:
    """Raises ConfigError unless the sizes are positive and consistent.

    Args:
      found: the architecture.
      path: path of the file, for messages.
      keys: field of the architecture -> its key in the file.
    """

    def wrong(name: str, reason: str) -> ConfigError:
        return ConfigError(f"{keys.get(name, name)} in {path}", getattr(found, name), reason)

    for name in _POSITIVE + (("window", "query_scalar") if found.is_gemma else ()):
        if not getattr(found, name) > 0:
            raise wrong(name, "must be above 0")
    if found.layers > _MOST_LAYERS:
        raise wrong("layers", _TOO_MANY)
    if found.heads % found.kv_heads:
        raise wrong("kv_heads", f"must divide the {found.heads} query heads")
    if found.head_dim % 2:
        raise wrong("head_dim", "must be even")
    if found.experts and not 0 < found.experts_per_token <= found.experts:
        reason = f"must be above 0 and at most {found.experts}, the number of experts"
        raise wrong("experts_per_token", reason)
    for name in ("attention_cap", "logits_cap"):
        if getattr(found, name) < 0:
            raise wrong(name, "must be above 0, or null")
    if found.block == "gemma2" and found.layers % 2:
        reason = "must be even: MaxText has pairs of a layer with a window and one without"
        raise wrong("layers", reason)
    ways = (found.head_dim, found.width // found.heads)
    if found.block == "gemma3" and found.query_scalar not in ways:
        reason = f"must be {ways[0]} (head_dim) or {ways[1]} (hidden_size / num_attention_heads)"
        raise wrong("query_scalar", reason)


def _problems(
    content: Mapping[str, Any], values: Mapping[str, Any], family: Family, path: Path
) -> Iterator[ConfigError]:
    """Yields an error for each key that MaxText would compute differently than the model needs."""
    for key, right in family.required.items():
        value = values.get(key)
        if not any(_same(value, one) for one in right):
            shown = json.dumps(right[0])
            if key == "quantization_config":
                shown = "null: convert the original, or a GGUF file"
            yield ConfigError(f"{key} in {path}", value, f"is not supported; must be {shown}")
    counts = [content[key] for key in ("num_experts", "num_local_experts") if key in content]
    if counts[1:] and counts[0] != counts[1]:
        reason = f"contradicts num_local_experts = {counts[1]!r}"
        yield ConfigError(f"num_experts in {path}", counts[0], reason)
    for key in content:
        if not family.knows(key):
            reason = "is not known, so it may change what the model computes: remove it in a copy "
            reason += "if it does not"
            yield ConfigError(f"{key} in {path}", content[key], reason)
    if family.block.startswith("gemma"):
        yield from _pattern_problems(values, family, path)
    else:
        yield from _window_problems(values, family, path)


def _same(value: Any, right: Any) -> bool:
    """True if two values are equal, without taking True for 1."""
    return value == right and isinstance(value, bool) is isinstance(right, bool)


def _window_problems(
    values: Mapping[str, Any], family: Family, path: Path
) -> Iterator[ConfigError]:
    """Yields an error if config.json has sliding windows, for families whose layers have none."""
    # The classes make it null where use_sliding_window is false.
    window, windowed = values.get("sliding_window"), True
    if "layer_types" in family.carried:
        kinds = values.get("layer_types")
        kinds = kinds if isinstance(kinds, list) else [None]
        # A layer with a window of no length is an error in transformers.
        allowed = (_FULL,) if window is None else (_FULL, _SLIDING)
        if strange := [kind for kind in kinds if kind not in allowed]:
            reason = f"is not supported; must hold only {_FULL}"
            yield ConfigError(f"layer_types in {path}", strange[0], reason)
        windowed = _SLIDING in kinds
    if window is not None and windowed:
        reason = (
            "sliding windows are not supported. Sequences of up to that many tokens do not need "
            "it: for those, set it to null in a copy"
        )
        yield ConfigError(f"sliding_window in {path}", window, reason)


def _pattern_problems(
    values: Mapping[str, Any], family: Family, path: Path
) -> Iterator[ConfigError]:
    """Yields an error if layers of a Gemma and of MaxText differ in having a window."""
    period = 2 if family.block == "gemma2" else GEMMA3_PERIOD
    expected = [
        _SLIDING if (layer + 1) % period else _FULL for layer in range(values["num_hidden_layers"])
    ]
    if (found := values.get("layer_types")) != expected:
        reason = f"is not supported; of {period} layers in a row the last must have no window"
        yield ConfigError(f"layer_types in {path}", found, reason)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        # transformers applies a cap of 0, with which all logits are alike.
        if (cap := values.get(key)) is not None and not cap > 0:
            yield ConfigError(f"{key} in {path}", cap, "must be above 0, or null")
    if not isinstance(values.get("sliding_window"), int):
        reason = "must be a number of tokens"
        yield ConfigError(f"sliding_window in {path}", values.get("sliding_window"), reason)


def content_of(found: Architecture, dtype: str = "float32") -> dict[str, Any]:
    """Returns the content of a config.json for an architecture; the inverse of ``architecture``.

    Args:
      found: the architecture.
      dtype: dtype of the tensors beside the file.
    """
    content: dict[str, Any] = {
        "architectures": [found.family],
        "model_type": FAMILIES[found.family].model_type,
        "dtype": dtype,
        "hidden_size": found.width,
        "intermediate_size": found.mlp_width,
        "num_hidden_layers": found.layers,
        "num_attention_heads": found.heads,
        "num_key_value_heads": found.kv_heads,
        "head_dim": found.head_dim,
        "vocab_size": found.vocab_size,
        "max_position_embeddings": found.positions,
        "rms_norm_eps": found.norm_epsilon,
        "tie_word_embeddings": found.tied,
        **rope_content(found),
    }
    if found.is_gemma:
        content |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": found.window,
            "query_pre_attn_scalar": _whole(found.query_scalar),
            "attn_logit_softcapping": found.attention_cap or None,
            "final_logit_softcapping": found.logits_cap or None,
        }
        return content
    content["hidden_act"] = "silu"
    if found.family in ("MistralForCausalLM", "MixtralForCausalLM"):
        content["sliding_window"] = None  # Mistral's default is 4096
    if found.experts:
        count = "num_local_experts" if found.family == "MixtralForCausalLM" else "num_experts"
        content |= {count: found.experts, "num_experts_per_tok": found.experts_per_token}
    if found.family == "Qwen3MoeForCausalLM":
        content |= {"moe_intermediate_size": found.mlp_width, "norm_topk_prob": True}
    return content


def _whole(number: float) -> int | float:
    return int(number) if number == int(number) else number
