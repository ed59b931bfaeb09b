"""The smallest decode engine, with weights and the trainer's forward pass to compare with."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules

from maxtext_overrides import variables
from maxtext_overrides.config.loading import load
from maxtext_overrides.sampler import decode
from maxtext_overrides.sampler.decode import DecodeEngine
from rlax_plugin.config.loading import resolve

from maxtext.common.common_types import MODEL_MODE_TRAIN  # isort: skip
from maxtext.utils import model_creation_utils  # isort: skip

TINY = str(Path(__file__).parent / "tiny.yml")
SLOTS, PROMPT, NEW, VOCAB = 8, 8, 12, 64
MOE = {
    "decoder_block": "deepseek",
    "first_num_dense_layers": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "shared_experts": 1,
    "base_moe_mlp_dim": 32,
    "routed_bias": True,
    "routed_score_func": "sigmoid",
    "sparse_matmul": False,
    "attention_type": "mla",
    "mla_naive_kvcache": False,
    "q_lora_rank": 0,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "rope_type": "yarn",
}


def configure(**overrides):
    known = {
        "per_device_batch_size": SLOTS,
        "max_prefill_predict_length": PROMPT,
        "max_target_length": PROMPT + NEW,
        "scan_layers": False,
    } | decode.FASTEST_LAYOUT
    return load(resolve(TINY), **(known | overrides))


def random_weights(engine, seed=0):
    """Weights that make a peaked, prompt-dependent distribution."""
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(
            np.ones(spec.shape) if "scale" in name else rng.normal(0, 0.25, spec.shape), spec.dtype
        )
        for name, spec in engine.variables_like().items()
    }


def trainer_model(config, engine):
    create = model_creation_utils.get_nnx_create_model_fn(
        config, mesh=engine.model.mesh, model_mode=MODEL_MODE_TRAIN
    )
    with logical_axis_rules(config.logical_axis_rules):
        return nnx.eval_shape(create)


def unused(like):
    """A state of random numbers that a model without dropout never uses."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), like.shape)
    return jnp.zeros(like.shape, like.dtype)


def compiled_decoding(engine, weights):
    """Returns the program that XLA makes of a decode call."""
    rest = np.ones(engine.slots, bool), np.int32(3), np.bool_(0), engine.max_prompt_tokens
    return engine._decode.lower(engine._state, weights, *rest).compile().as_text()


class Case:
    """One config with its engine, weights, and the trainer's forward pass."""

    def __init__(self, **overrides):
        self.config = configure(**overrides)
        self.engine = DecodeEngine(self.config)
        self.weights = random_weights(self.engine)
        graph, self.abstract = nnx.split(trainer_model(self.config, self.engine))

        @jax.jit
        def forward(weights, tokens, positions, segments):
            state = variables.restore(self.abstract, weights)
            flat = [
                (path, v.replace(unused(v.get_value())))
                if isinstance(v, nnx.RngState)
                else (path, v)
                for path, v in nnx.to_flat_state(state)
            ]
            model = nnx.merge(graph, nnx.from_flat_state(flat), copy=True)
            with self.engine.model.mesh, logical_axis_rules(self.config.logical_axis_rules):
                return model(
                    tokens,
                    positions,
                    decoder_segment_ids=segments,
                    enable_dropout=False,
                    model_mode=MODEL_MODE_TRAIN,
                )

        self._forward = forward

    def completion_logits(self, prompt, completion, weights=None):
        """Logits [length, vocab] from which the trainer scores each token of the completion."""
        length = self.config.max_target_length
        row = np.concatenate([prompt, completion])
        tokens = np.zeros((SLOTS, length), np.int32)
        tokens[0, : row.size] = row
        positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
        segments = (positions < row.size).astype(np.int32)
        logits = self._forward(weights or self.weights, tokens, positions, segments)
        return np.asarray(logits[0, prompt.size - 1 : row.size - 1], np.float64)

    def generate(self, requests, weights=None):
        """Inserts and decodes to the end; slot -> Generated."""
        self.engine.insert(weights or self.weights, requests)
        return {f.slot: f for f in self.engine.decode(weights or self.weights, 1000, False)}


def log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def reference_logprobs(logits, tokens, sampling):
    """(full, sampled) of ``rlax_plugin.base.types``, by sorting, in float64."""
    full = log_softmax(logits / sampling.temperature)
    sampled = np.full_like(full, -np.inf)
    for row, kept in zip(full, sampled, strict=True):
        order = np.argsort(-row, kind="stable")
        if sampling.top_k:
            order = order[: sampling.top_k]
        mass = np.cumsum(np.exp(row[order]) / np.exp(row[order]).sum())
        order = order[: int(np.searchsorted(mass, sampling.top_p - 1e-9)) + 1]
        kept[order] = log_softmax(row[order])
    places = np.arange(tokens.size)
    return full[places, tokens], sampled[places, tokens]


def prompts_of(*lengths):
    rng = np.random.default_rng(1)
    return [rng.integers(0, VOCAB, length).astype(np.int32) for length in lengths]
