"""Directories of PEFT for tiny models, written without PEFT."""

import json
from pathlib import Path

import numpy as np
import tiny_models
from safetensors.numpy import save_file

PATH = "decoder/layers.*/(self_attention[^/]*/(query|key|value|out)|mlp[^/]*/(wi_0|wi_1|wo))"
RANK, ALPHA = 4, 6
LORA = {
    "enable_lora": True,
    "lora_rank": RANK,
    "lora_alpha": float(ALPHA),
    "lora_module_path": PATH,
}
# As peft 0.21.2 writes it.
CONFIG = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "auto_mapping": None,
    "base_model_name_or_path": "somewhere",
    "bias": "none",
    "ensure_weight_tying": False,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": ALPHA,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": RANK,
    "rank_pattern": {},
    "target_modules": [
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    ],
    "task_type": "CAUSAL_LM",
    "use_dora": False,
    "use_rslora": False,
}


def tensors(family: str) -> dict[str, np.ndarray]:
    """Adapters of all matrices in the layers of a tiny model: name -> float32."""
    rng, found = np.random.default_rng(3), {}
    for name, shape in tiny_models.known(family)["tensors"].items():
        if name.endswith("_proj.weight"):
            path = f"base_model.model.{name.removesuffix('.weight')}"
            a, b = rng.standard_normal((RANK, shape[1])), rng.standard_normal((shape[0], RANK))
            found[f"{path}.lora_A.weight"] = np.float32(a / np.sqrt(shape[1]))
            found[f"{path}.lora_B.weight"] = np.float32(b / 4)
    return found


def write(directory: Path, adapters: dict[str, np.ndarray], **keys: object) -> Path:
    """Writes adapters, with some keys of their config changed."""
    directory.mkdir()
    save_file(adapters, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG | keys))
    return directory


def merged(family: str, adapters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's tensors with their adapters added: W + (alpha / r) B A."""
    found = tiny_models.weights_of(family)
    for name in found:
        path = f"base_model.model.{name.removesuffix('.weight')}"
        if (a := adapters.get(f"{path}.lora_A.weight")) is not None:
            found[name] = found[name] + ALPHA / RANK * adapters[f"{path}.lora_B.weight"] @ a
    return found
