"""Versions for vLLM of a tiny model of MaxText's, and the trainer's log-probs of them."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from rlax_vllm.options import VllmConfig
from safetensors.numpy import save_file

from maxtext_overrides.config.loading import load_to_check
from maxtext_overrides.models import export
from maxtext_overrides.models.forward import EXACT, Forward
from maxtext_overrides.models.reading import HeldWeights
from rlax_plugin.api import BuildContext, WeightVersion, fingerprint_numpy
from rlax_plugin.base.types import Canary, TensorSpec, VersionPart
from rlax_plugin.config.loading import resolve

TINY = str(Path(__file__).parent / "tiny.yml")
PYTHON = os.environ.get("RLAX_VLLM_PYTHON", "")
"""The Python of an environment with vLLM."""

needs_vllm = pytest.mark.skipif(not PYTHON, reason="RLAX_VLLM_PYTHON names no Python with vLLM")

VOCAB, PROMPT, NEW = 64, 24, 40
KEYS = (
    "base_emb_dim=64",
    "head_dim=32",  # vLLM's attention on CPUs takes no 16
    "normalize_embedding_logits=false",
    "max_target_length=64",
    f"rlax.rollouts.max_prompt_tokens={PROMPT}",
    f"rlax.rollouts.max_new_tokens={NEW}",
    "rlax.rollouts.slots=16",
    "rlax.rollouts.progress_s=0.2",
)
TOKENS = np.array([3, 17, 5, 60, 2, 9, 33, 41, 8, 8, 21, 50, 4, 19, 63, 30], np.int32)


class TinyModel:
    """The model of ``tiny.yml`` with heads of 32, and versions of it."""

    def __init__(self, *argv: str):
        self.given = resolve(TINY, (*KEYS, *argv))
        self.maxtext = load_to_check(self.given, **EXACT)
        self.description = export.describe(self.maxtext, Path("none"), dict)
        self._forwards: dict[int, Forward] = {}

    def context(self) -> BuildContext:
        return BuildContext.outside_run(self.given.section, self.given)

    def native(self, seed: int) -> dict[str, np.ndarray]:
        """Weights that make a peaked, prompt-dependent distribution."""
        rng = np.random.default_rng(seed)
        return {
            one.name: np.asarray(
                np.ones(one.shape) if "scale" in one.name else rng.normal(0, 0.12, one.shape),
                np.float32,
            )
            for one in self.description.variables
        }

    def tensors(self, seed: int) -> dict[str, np.ndarray]:
        native = self.native(seed)
        found: dict[str, np.ndarray] = {}
        for one in self.description.variables:
            found |= dict(one.to_tensors(native[one.name], np.dtype(np.float32)))
        return found

    def logprobs(self, seed: int, tokens: np.ndarray, temperature: float = 1.0) -> np.ndarray:
        """The trainer's log-probs of ``tokens[1:]``, float32."""
        if seed not in self._forwards:
            self._forwards[seed] = Forward(self.maxtext, HeldWeights(self.native(seed)))
        row = np.zeros(64, np.int32)  # of one length: one program
        row[: len(tokens)] = tokens
        logits = self._forwards[seed](row, np.arange(64))[: len(tokens) - 1].astype(np.float64)
        logits /= temperature
        top = logits.max(-1, keepdims=True)
        normal = np.log(np.exp(logits - top).sum(-1, keepdims=True)) + top
        return np.take_along_axis(logits - normal, tokens[1:, None], 1)[:, 0].astype(np.float32)

    def version(self, directory: Path, number: int, seed: int) -> WeightVersion:
        """Writes a version as a part of format safetensors."""
        path = directory / f"{number}-{seed}"
        path.mkdir()
        tensors = self.tensors(seed)
        save_file(tensors, path / "model.safetensors")
        prints = fingerprint_numpy(tensors)
        specs = {
            n: TensorSpec(tuple(a.shape), a.dtype.name, int(prints[n])) for n, a in tensors.items()
        }
        part = VersionPart("huggingface", str(path), specs, "safetensors")
        canary = Canary(TOKENS, self.logprobs(seed, TOKENS), 1e-4)
        return WeightVersion(number, number, (part,), canary)

    def engine(self, mode: str = "continue", **options: object):
        from rlax_vllm import _build

        context = self.context()
        rollouts = context.section.rollouts.model_copy(update={"on_new_weights": mode})
        section = context.section.model_copy(update={"rollouts": rollouts})
        options = {"python": PYTHON, **options}
        return _build(VllmConfig(**options), dataclasses.replace(context, section=section))
