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
}
STRIDES = {"llama3": 300}  # between positions, so that the scaling matters
EVERY = 4  # of all positions, those of which logits are kept
COLUMNS = [3, 31, 59, 95]


def reference(family: str) -> dict:
    (kind, keys), stride = FAMILIES[family], STRIDES.get(family, 1)
    config = getattr(transformers, f"{kind}Config")(**COMMON | keys)
    created = transformers.AutoModelForCausalLM.from_config(config).float()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        created.save_pretrained(directory)
        saved = json.loads((directory / "config.json").read_text())
        with safe_open(directory / "model.safetensors", "np") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
    weights = tiny_models.weights(shapes, saved["model_type"])
    missing = created.load_state_dict({k: torch.tensor(v) for k, v in weights.items()}, False)
    tied = ["lm_head.weight"] if saved.get("tie_word_embeddings") else []
    assert not missing.unexpected_keys and set(missing.missing_keys) <= set(tied), missing
    created.tie_weights()
    created.eval()
    with torch.no_grad():
        tokens = torch.tensor(tiny_models.tokens(saved["vocab_size"]))
        places = torch.tensor(tiny_models.positions(stride))
        logits = (
            created(tokens, position_ids=places).logits.numpy().reshape(-1, saved["vocab_size"])
        )
    best = np.sort(logits, axis=1)[:, -2:]
    gap = (best[:, 1] - best[:, 0]).min()
    print(f"{family}: std {logits.std():.2f}, smallest lead of the best token {gap:.3f}")
    return {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "config": saved,
        "tensors": shapes,
        "stride": stride,
        "every": EVERY,
        "best": logits[::EVERY].argmax(axis=1).tolist(),
        "columns": COLUMNS,
        "logits": [[round(float(x), 5) for x in row] for row in logits[::EVERY][:, COLUMNS]],
    }


def main() -> None:
    for family in FAMILIES:
        text = json.dumps(reference(family), indent=1)
        rows_in_a_line = re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()), text)
        Path(__file__).with_name(f"{family}.json").write_text(rows_in_a_line + "\n")


if __name__ == "__main__":
    main()
