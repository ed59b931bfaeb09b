"""Compares episodes of several turns whose contexts are prefilled anew, and kept between turns.

Two decode engines of a worker with the same random weights take turns in one process. Each plays as
many episodes at once as it has slots: an answer, what an environment says, the next answer, and so
on. Counts of tokens are exact; times want a quiet machine::

    python benchmarks/conversations.py --work smollm2 --episodes 16 --turns 6
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench import interval, machine
from folding import CONFIGS, WORKS
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results" / "conversations.jsonl"
WAYS = ("prefilled anew", "kept")


def engines(work: str, episodes: int, prompt: int, longest: int, answer: int) -> dict[str, Any]:
    """Returns the engine of each way."""
    import jax

    from maxtext_overrides.config.loading import load
    from maxtext_overrides.sampler.decode import FASTEST_LAYOUT, DecodeEngine
    from rlax_plugin.config.loading import resolve

    name, model = WORKS[work]
    config = load(
        resolve(CONFIGS / name, [*model, "scan_layers=true"]),
        **FASTEST_LAYOUT,
        per_device_batch_size=episodes // jax.device_count(),
        gradient_accumulation_steps=1,
        max_prefill_predict_length=longest,
        max_target_length=longest + answer,
        enable_checkpointing=False,
        async_checkpointing=False,
    )
    return {
        way: DecodeEngine(config, group_size=1, prompt_tokens=prompt, keeps=way == "kept")
        for way in WAYS
    }


def play(engine: Any, weights: Any, prompts: np.ndarray, args: argparse.Namespace) -> float:
    """Plays one episode behind each prompt; returns the seconds that prefills took."""
    from rlax_plugin.batching.decode_engine import Prefill
    from rlax_plugin.types import SamplingParams

    rng, contexts, took_s = np.random.default_rng(1), list(prompts), 0.0
    sampling = SamplingParams(max_new_tokens=args.answer)
    for _ in range(args.turns):
        requests, free = [], list(engine.free_slots)
        for number, context in enumerate(contexts):
            kept = engine.kept_for(context)
            slot = free[0] if kept is None else kept
            free.remove(slot)
            requests.append(Prefill(context, (slot,), (number,), sampling))
        began_s = time.perf_counter()
        engine.insert(weights, requests)
        engine.read([0])  # returns when the prompts are there
        took_s += time.perf_counter() - began_s
        answers = {one.slot: one.tokens for one in engine.decode(weights, args.answer, False)}
        contexts = [
            np.concatenate(
                [r.tokens, answers[r.slots[0]], rng.integers(1, 100, args.given).astype(np.int32)]
            )
            for r in requests
        ]
    engine.forget_contexts()
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=WORKS, default="smollm2")
    parser.add_argument("--episodes", type=int, default=16, help="as many at once")
    parser.add_argument("--turns", type=int, default=6, help="answers of an episode")
    parser.add_argument("--prompt", type=int, default=48, help="tokens")
    parser.add_argument("--answer", type=int, default=16, help="tokens")
    parser.add_argument("--given", type=int, default=12, help="tokens between two answers")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()

    import jax

    longest = args.prompt + (args.turns - 1) * (args.answer + args.given)
    made = engines(args.work, args.episodes, args.prompt, longest, args.answer)
    rng = np.random.default_rng(0)
    weights = {
        name: jax.device_put((0.02 * rng.normal(size=like.shape)).astype(like.dtype))
        for name, like in made["kept"].variables_like().items()
    }
    made["kept"].lay_out(weights)
    prompts = rng.integers(1, 100, (args.episodes, args.prompt)).astype(np.int32)
    prefill_s: dict[str, list[float]] = {way: [] for way in WAYS}
    episode_s: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(1 + args.rounds):  # in the first one both compile
        for way, engine in made.items():
            engine.forget_totals()
            began_s = time.perf_counter()
            took_s = play(engine, weights, prompts, args)
            if turn:
                prefill_s[way].append(took_s)
                episode_s[way].append(time.perf_counter() - began_s)
    result: dict[str, Any] = vars(args) | {"machine": machine()}
    table = Table(title=f"{args.work}: {args.episodes} episodes of {args.turns} turns")
    for column in ("way", "prefilled tokens an episode", "computed", "prefill s", "all s"):
        table.add_column(column, justify="right")
    for way, engine in made.items():
        result[way] = {
            "prefilled": engine.prefill_tokens_total / args.episodes,
            "computed": engine.prefill_computed_total / args.episodes,
            "prefill_s": statistics.median(prefill_s[way]),
            "all_s": statistics.median(episode_s[way]),
        }
        counts = [f"{result[way][name]:.0f}" for name in ("prefilled", "computed")]
        times = [f"{result[way][name]:.2f}" for name in ("prefill_s", "all_s")]
        table.add_row(way, *counts, *times)
    anew, kept = WAYS
    ratios = {}
    for what, spent in (("prefill", prefill_s), ("all", episode_s)):
        values = [k / a for k, a in zip(spent[kept], spent[anew], strict=True)]
        ratios[what] = [statistics.median(values), *interval(values)]
    result["kept / anew"] = ratios
    Console(width=110).print(table)
    for what, (median, low, high) in ratios.items():
        print(f"{what}, kept / anew: {median:.2f} [{low:.2f}, {high:.2f}]")
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
