"""Writes the reference files of this folder: what transformers and torch say of each tiny model.

Run it in an environment of its own, which has torch; the project's has none:

    python -m venv /tmp/torchenv
    /tmp/torchenv/bin/pip install torch transformers safetensors tokenizers numpy
    PYTHONPATH=tests/helpers /tmp/torchenv/bin/python tests/data/tiny_models/make.py
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import numpy as np
import tiny_models
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

COMMON = dict(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
    dtype="float32",
    attn_implementation="eager",
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500_000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
FAMILIES = {
    "llama": ("Llama", {}),
    "llama_tied": (
        "Llama",
        dict(
            vocab_size=128,
            hidden_size=48,
            num_attention_heads=3,
            num_key_value_heads=1,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        ),
    ),
    "llama3": ("Llama", dict(rope_parameters=LLAMA3_ROPE, max_position_embeddings=131_072)),
    "mistral": ("Mistral", dict(head_dim=24, sliding_window=None)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen3": ("Qwen3", dict(head_dim=32)),
    "gemma": ("Gemma", dict(head_dim=16, num_key_value_heads=1)),
    "gemma2": ("Gemma2", dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=64)),
    "llama32": (
        "Llama",
        dict(
            rope_parameters=LLAMA3_ROPE | {"factor": 32.0},
            max_position_embeddings=131_072,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
        ),
    ),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2)),
    "mixtral_wide": (
        "Mixtral",
        dict(
            num_local_experts=6,
            num_experts_per_tok=3,
            head_dim=24,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        ),
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        dict(
            head_dim=32,
            moe_intermediate_size=48,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
        ),
    ),
    "gemma2_other": (
        "Gemma2",
        dict(
            num_hidden_layers=4,
            head_dim=24,
            query_pre_attn_scalar=40,
            sliding_window=8,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=4.0,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        ),
    ),
    "gemma3": (
        "Gemma3Text",
        dict(
            num_hidden_layers=8,  # five with a window, one without, and two more
            rms_norm_eps=1e-6,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=8,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
                "full_attention": {"rope_type": "default", "rope_theta": 500_000.0},
            },
        ),
    ),
    "gemma3_linear": (
        "Gemma3Text",
        dict(
            num_hidden_layers=6,
            head_dim=24,
            query_pre_attn_scalar=16,  # hidden_size / num_attention_heads, as in the 27B
            sliding_window=8,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
            },
        ),
    ),
}
STRIDES = {"llama3": 300, "llama32": 300}  # between positions, so that the scaling matters
EMBEDDINGS = dict.fromkeys(("gemma2_other", "gemma3", "gemma3_linear"), 0.2)
EVERY = 4  # of all positions, those of which logits are kept
COLUMNS = [3, 31, 59, 95]
ANSWER = 16  # tokens of the greedy continuation of ``tiny_models.prompt``
NEAR = 1e-3  # best tokens that lead by less could differ between two exact computations


def reference(family: str) -> dict:
    (kind, keys), stride = FAMILIES[family], STRIDES.get(family, 1)
    embedding = EMBEDDINGS.get(family, 1.0)
    config = getattr(transformers, f"{kind}Config")(**COMMON | keys)
    created = transformers.AutoModelForCausalLM.from_config(config).float()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        created.save_pretrained(directory)
        saved = json.loads((directory / "config.json").read_text())
        with safe_open(directory / "model.safetensors", "np") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
        # Loaded, because the names in a file are not always those of the module's parameters:
        # the experts of a layer are one parameter, and a tensor each in a file.
        weights = tiny_models.weights(shapes, saved["model_type"], embedding)
        save_file(weights, directory / "model.safetensors", {"format": "pt"})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype="float32", attn_implementation="eager", output_loading_info=True
        )
    assert not any(info.values()), info
    model.eval()
    size = saved["vocab_size"]
    tokens, places = tiny_models.tokens(size), tiny_models.positions(stride)
    logits = computed(model, tokens, places).reshape(-1, size)
    answer, leads = tiny_models.prompt(size), [lead(logits)]
    for _ in range(ANSWER):
        row = np.array([answer])
        last = computed(model, row, np.arange(len(answer))[None])[:, -1]
        answer.append(int(last.argmax()))
        leads.append(lead(last))
    assert min(leads) > NEAR, f"{family}: two best tokens are {min(leads)} apart"
    print(f"{family}: std {logits.std():.2f}, smallest lead of the best token {min(leads):.3f}")
    return {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "config": saved,
        "tensors": shapes,
        "stride": stride,
        **({"embedding": embedding} if embedding != 1.0 else {}),
        "every": EVERY,
        "best": logits[::EVERY].argmax(axis=1).tolist(),
        "columns": COLUMNS,
        "logits": [[round(float(x), 5) for x in row] for row in logits[::EVERY][:, COLUMNS]],
        "greedy": answer[-ANSWER:],
    }


def computed(model: torch.nn.Module, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float32 [rows, length, vocabulary]: the logits of all positions."""
    with torch.no_grad():
        return model(torch.tensor(tokens), position_ids=torch.tensor(positions)).logits.numpy()


def lead(logits: np.ndarray) -> float:
    """By how much the best token of each row leads, at least."""
    best = np.sort(logits, axis=1)[:, -2:]
    return float((best[:, 1] - best[:, 0]).min())


def main() -> None:
    for family in FAMILIES:
        text = json.dumps(reference(family), indent=1)
        rows_in_a_line = re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()), text)
        Path(__file__).with_name(f"{family}.json").write_text(rows_in_a_line + "\n")


if __name__ == "__main__":
    main()
