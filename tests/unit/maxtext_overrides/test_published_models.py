"""Published models of real size, of which only the headers of the weights are there."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from maxtext_overrides.models import convert
from maxtext_overrides.models.huggingface_config import architecture
from maxtext_overrides.models.rules import tensor_shapes
from rlax_plugin.errors import ConfigError

# Of each the published config.json, without what does not matter, and the published number of
# parameters.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.2-1B": (
        dict(
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            vocab_size=128256,
            max_position_embeddings=131072,
            rms_norm_eps=1e-5,
            rope_theta=500000.0,
            rope_scaling=dict(
                factor=32.0,
                high_freq_factor=4.0,
                low_freq_factor=1.0,
                original_max_position_embeddings=8192,
                rope_type="llama3",
            ),
            tie_word_embeddings=True,
        ),
        1_235_814_400,
    ),
    "Mixtral-8x7B": (
        dict(
            architectures=["MixtralForCausalLM"],
            model_type="mixtral",
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            num_local_experts=8,
            num_experts_per_tok=2,
            vocab_size=32000,
            max_position_embeddings=32768,
            rms_norm_eps=1e-5,
            rope_theta=1e6,
            sliding_window=None,
            output_router_logits=False,
            router_aux_loss_coef=0.02,
        ),
        46_702_792_704,
    ),
    "Qwen3-30B-A3B": (
        dict(
            architectures=["Qwen3MoeForCausalLM"],
            model_type="qwen3_moe",
            attention_bias=False,
            decoder_sparse_step=1,
            hidden_size=2048,
            intermediate_size=6144,
            max_window_layers=48,
            mlp_only_layers=[],
            moe_intermediate_size=768,
            norm_topk_prob=True,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            vocab_size=151936,
            max_position_embeddings=40960,
            rope_scaling=None,
            rope_theta=1e6,
            sliding_window=None,
            use_sliding_window=False,
        ),
        30_532_122_624,
    ),
    "gemma-2-27b": (
        dict(
            architectures=["Gemma2ForCausalLM"],
            model_type="gemma2",
            attn_logit_softcapping=50.0,
            cache_implementation="hybrid",
            final_logit_softcapping=30.0,
            head_dim=128,
            hidden_act="gelu_pytorch_tanh",
            hidden_activation="gelu_pytorch_tanh",
            hidden_size=4608,
            intermediate_size=36864,
            num_hidden_layers=46,
            num_attention_heads=32,
            num_key_value_heads=16,
            query_pre_attn_scalar=144,
            sliding_window=4096,
            vocab_size=256000,
        ),
        27_227_128_320,
    ),
    "gemma-3-1b": (
        dict(
            architectures=["Gemma3ForCausalLM"],
            model_type="gemma3_text",
            cache_implementation="hybrid",
            head_dim=256,
            hidden_activation="gelu_pytorch_tanh",
            hidden_size=1152,
            intermediate_size=6912,
            num_hidden_layers=26,
            num_attention_heads=4,
            num_key_value_heads=1,
            query_pre_attn_scalar=256,
            rope_local_base_freq=10000,
            rope_scaling=None,
            rope_theta=1000000,
            sliding_window=512,
            sliding_window_pattern=6,
            max_position_embeddings=32768,
            vocab_size=262144,
        ),
        999_885_952,
    ),
}
# Of each one value that is not the published one, and what then is wrong.
OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "Llama-3.2-1B": ({"rope_interleaved": True}, "rope_interleaved in "),
    "Mixtral-8x7B": ({"sliding_window": 4096}, "sliding_window in .* = 4096"),
    "Qwen3-30B-A3B": ({"norm_topk_prob": False}, "norm_topk_prob in .* = False"),
    "gemma-2-27b": ({"rms_norm_eps": 1e-5}, "rms_norm_eps in .* = 1e-05"),
    "gemma-3-1b": ({"query_pre_attn_scalar": 168}, "query_pre_attn_scalar in .* must be 256 "),
}


def headers(content: dict[str, Any], directory: Path) -> Path:
    """A directory whose weights take no room: a header, and a hole of the right size."""
    directory.mkdir()
    path = directory / "config.json"
    path.write_text(json.dumps(content))
    entries, end = {}, 0
    for name, shape in tensor_shapes(architecture(content, path)).items():
        begin, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        os.truncate(file.fileno(), 8 + len(header) + end)
    return directory


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_number_of_parameters(name: str, tmp_path: Path) -> None:
    content, count = PUBLISHED[name]
    source = headers(content, tmp_path / "source")
    for scanned in (True, False):
        assert convert.examine(source, "bfloat16", scanned).source.where == str(source)
    # A tied head is one of the parameters that are published.
    assert convert.examine(source, "bfloat16", True).parameters == count

    changes, message = OTHER[name]
    (source / "config.json").write_text(json.dumps(content | changes))
    with pytest.raises(ConfigError, match=message):
        convert.examine(source, "bfloat16", True)
