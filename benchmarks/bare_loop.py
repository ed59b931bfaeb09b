"""The yardstick: one synchronous GRPO loop in bare JAX, no framework, no other process.

A step generates 8 samples for each of 8 prompts with a KV cache, scores them by parity, and makes
one clipped-GRPO AdamW update on the 64 rows. The model is Llama's decoder block (RMSNorm, rotary
attention, gated SiLU) with tied embeddings, in float32. No early stop, no KL term.

    python benchmarks/bare_loop.py --work w1 --steps 50 --json out.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

PROMPTS, SAMPLES = 8, 8
CLIP, LEARNING_RATE = 0.2, 1e-4
Params = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """The sizes of a standard task; head size is width / heads."""

    layers: int
    width: int
    heads: int
    mlp: int
    vocab: int
    new_tokens: int
    prompt_tokens: int = 16


WORKS = {
    "w1": Work(layers=2, width=64, heads=4, mlp=256, vocab=512, new_tokens=16),
    "w2": Work(layers=8, width=512, heads=8, mlp=2048, vocab=8192, new_tokens=32),
}


def init(work: Work, key: jax.Array) -> Params:
    """Returns normal weights with standard deviation fan_in ** -0.5; norms at 1."""
    d = work.width
    shapes = {"qkv": (d, 3 * d), "out": (d, d)}
    shapes |= {"gate": (d, work.mlp), "up": (d, work.mlp), "down": (work.mlp, d)}
    keys = iter(jax.random.split(key, 1 + work.layers * len(shapes)))
    layers = [
        {n: jax.random.normal(next(keys), s) * s[0] ** -0.5 for n, s in shapes.items()}
        | {"norm_1": jnp.ones(d), "norm_2": jnp.ones(d)}
        for _ in range(work.layers)
    ]
    embed = jax.random.normal(next(keys), (work.vocab, d)) * d**-0.5
    return {"embed": embed, "layers": layers, "norm": jnp.ones(d)}


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def rotate(x_bhtd: jax.Array, positions_t: jax.Array) -> jax.Array:
    """Applies rotary position embedding over the last axis, halves paired, base 10000."""
    half = x_bhtd.shape[-1] // 2
    angle = positions_t[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    a, b = x_bhtd[..., :half], x_bhtd[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def project(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Returns ``x @ matrix`` with all leading axes of x as one: a faster gradient on a CPU."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], -1)


def block(work: Work, p: Params, x: jax.Array, positions: jax.Array, cache: Any) -> Any:
    """Computes one decoder layer; with a cache (k, v) new keys are written at ``positions[0]``."""
    batch, length, width = x.shape
    qkv = project(rms_norm(x, p["norm_1"]), p["qkv"])
    qkv = qkv.reshape(batch, length, -1, width // work.heads).transpose(0, 2, 1, 3)
    q, k, v = jnp.split(qkv, 3, axis=1)
    q, k = rotate(q, positions) * q.shape[-1] ** -0.5, rotate(k, positions)
    if cache is not None:
        k, v = (
            jax.lax.dynamic_update_slice_in_dim(old, new, positions[0], axis=2)
            for old, new in zip(cache, (k, v), strict=True)
        )
    seen = jnp.arange(k.shape[2]) <= positions[:, None]
    weights = jax.nn.softmax(jnp.where(seen, q @ k.swapaxes(2, 3), -1e30), axis=-1)
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    x += project(mixed, p["out"])
    normed = rms_norm(x, p["norm_2"])
    gate, up = project(normed, p["gate"]), project(normed, p["up"])
    return x + project(jax.nn.silu(gate) * up, p["down"]), (k, v)


def logits(params: Params, x: jax.Array) -> jax.Array:
    return project(rms_norm(x, params["norm"]), params["embed"].T)


def sample(logits_bv: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Samples one token per row by inverse CDF at temperature 1; returns it and its log-prob."""
    shifted = logits_bv - jnp.max(logits_bv, axis=-1, keepdims=True)
    cdf = jnp.cumsum(jnp.exp(shifted), axis=-1)
    total = cdf[:, -1:]
    u = jax.random.uniform(key, total.shape) * total
    token = jnp.minimum(jnp.sum(cdf <= u, axis=-1), logits_bv.shape[-1] - 1)
    chosen = jnp.take_along_axis(shifted, token[:, None], axis=-1)
    return token.astype(jnp.int32), (chosen - jnp.log(total))[:, 0]


@partial(jax.jit, static_argnums=0)
def generate(work: Work, params: Params, prompts: jax.Array, key: jax.Array) -> Any:
    """Returns int32 tokens and float32 log-probs [64, new_tokens]; prefills each prompt once."""
    x, caches = params["embed"][prompts], []
    for p in params["layers"]:
        x, kv = block(work, p, x, jnp.arange(work.prompt_tokens), None)
        room = ((0, 0), (0, 0), (0, work.new_tokens), (0, 0))
        caches.append(tuple(jnp.repeat(jnp.pad(c, room), SAMPLES, axis=0) for c in kv))
    keys = jax.random.split(key, work.new_tokens)
    first = sample(jnp.repeat(logits(params, x[:, -1]), SAMPLES, axis=0), keys[0])

    def decode(carry: Any, step: Any) -> Any:
        token, caches = carry
        position, key = step
        x, new = params["embed"][token][:, None], []
        for p, cache in zip(params["layers"], caches, strict=True):
            x, cache = block(work, p, x, position[None], cache)
            new.append(cache)
        token, logprob = sample(logits(params, x[:, 0]), key)
        return (token, new), (token, logprob)

    positions = work.prompt_tokens + jnp.arange(work.new_tokens - 1)
    _, rest = jax.lax.scan(decode, (first[0], caches), (positions, keys[1:]))
    return [jnp.concatenate([f[:, None], r.T], axis=1) for f, r in zip(first, rest, strict=True)]


def advantages(tokens: np.ndarray) -> np.ndarray:
    """Returns (R - mean) / std of each group of 8; R is 1 for an odd sum of tokens, else 0."""
    reward = (tokens.sum(axis=1) % 2).reshape(PROMPTS, SAMPLES).astype(np.float64)
    spread = reward.std(axis=1, ddof=1, keepdims=True)
    centred = reward - reward.mean(axis=1, keepdims=True)
    return (centred / (spread + 1e-6)).reshape(-1).astype(np.float32)


optimizer = optax.adamw(LEARNING_RATE, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)


def completion_logits(
    work: Work, params: Params, prompts: jax.Array, tokens: jax.Array
) -> jax.Array:
    """Returns logits [samples, new_tokens, vocab] of completions."""
    rows = jnp.concatenate([jnp.repeat(prompts, SAMPLES, axis=0), tokens[:, :-1]], axis=1)
    x = params["embed"][rows]
    for p in params["layers"]:
        x, _ = block(work, p, x, jnp.arange(rows.shape[1]), None)
    return logits(params, x[:, work.prompt_tokens - 1 :])


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def train(work: Work, params: Params, state: Any, batch: Any) -> Any:
    """Makes one clipped-GRPO update; logits are computed only for completion tokens."""
    prompts, tokens, old_logprobs, advantage = batch

    def loss(params: Params) -> jax.Array:
        scores = completion_logits(work, params, prompts, tokens)
        chosen = jnp.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]
        ratio = jnp.exp(chosen - jax.nn.logsumexp(scores, axis=-1) - old_logprobs)
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
        return -jnp.mean(jnp.minimum(ratio * advantage[:, None], clipped * advantage[:, None]))

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


@dataclass
class Times:
    """Milliseconds of the steps behind the first ``warmup`` ones, and of their two parts."""

    warmup: int
    ends: list[float] = field(default_factory=lambda: [time.perf_counter()])

    def generated(self) -> None:
        """Notes that the step's samples are generated and scored."""
        self.ends.append(time.perf_counter())

    def trained(self) -> None:
        """Notes that the step's weights are ready; the next step begins."""
        self.ends.append(time.perf_counter())

    def figures(self) -> dict[str, dict[str, float]]:
        """Returns the medians and the least of the times."""
        began, drawn, ended = (np.array(self.ends[i:][::2]) for i in (0, 1, 2))
        parts = {"step": ended - began[:-1], "generate": drawn - began[:-1], "train": ended - drawn}
        return {
            f"{name}_ms": {"median": float(np.median(kept)), "min": float(np.min(kept))}
            for name, values in parts.items()
            for kept in [1e3 * values[self.warmup :]]
        }


def run(work: str, steps: int, warmup: int = 2, seed: int = 0) -> dict[str, Any]:
    """Times ``steps`` synchronous steps after ``warmup`` untimed ones (compilation)."""
    sizes, key = WORKS[work], jax.random.key(seed)
    params = jax.jit(init, static_argnums=0)(sizes, key)
    state = optimizer.init(params)
    shape = (warmup + steps, PROMPTS, sizes.prompt_tokens)
    all_prompts = np.random.default_rng(seed).integers(0, sizes.vocab, shape, dtype=np.int32)
    times, value = Times(warmup), jnp.zeros(())
    for i, prompts in enumerate(all_prompts):
        tokens, logprobs = generate(sizes, params, prompts, jax.random.fold_in(key, i))
        advantage = advantages(np.asarray(tokens))
        times.generated()
        batch = (prompts, tokens, logprobs, advantage)
        params, state, value = train(sizes, params, state, batch)
        jax.block_until_ready((params, value))
        times.trained()
    return {"steps": steps, "final_loss": float(value), **times.figures()}


def command_line(description: str, timed: Callable[..., dict[str, Any]]) -> None:
    """Runs a yardstick as its arguments say, and prints its figures.

    Args:
      timed: (work, steps, seed=...) -> figures of one work, as ``run`` returns them.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--work", choices=sorted(WORKS), default="w1")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    result = {"work": args.work} | timed(args.work, args.steps, seed=args.seed)
    for name in ("generate_ms", "train_ms", "step_ms"):
        print(f"{name:12s} median {result[name]['median']:9.2f}  min {result[name]['min']:9.2f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    command_line(__doc__, run)
