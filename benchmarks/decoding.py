"""Compares a worker's prefill and decode steps with scanned weights laid out and as published.

Both ways alternate in one process, on the decode engine of a worker with random weights
(``maxtext_overrides/sampler/layer_major.py``). With ``--longest`` it compares decode steps that
attend to all places of the prompts' caches with those that attend to the places in use
(``buckets.reaches``). Further arguments are MaxText keys:

    python benchmarks/decoding.py --work smollm2 dtype=bfloat16
    python benchmarks/decoding.py --work smollm2 --longest 4096

``smollm2`` is a model of the shape of SmolLM2-135M.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from folding import CONFIGS, WORKS
from rich.console import Console
from rich.table import Table

SLOTS, SAMPLES, STEPS = 64, 8, 8
LAYOUTS = ("published", "laid out")
REACHES = ("all places", "places in use")
Times = dict[str, dict[str, list[float]]]


def measure(
    work: str, keys: Sequence[str], turns: int, prompt_tokens: int, longest: int | None
) -> Times:
    """Returns, for each way and turn, seconds of filling all slots and of one decode step.

    Args:
      work: name of the model.
      keys: MaxText keys.
      turns: number of measured turns, after one in which both ways compile.
      prompt_tokens: length of the prompts.
      longest: tokens that a slot's cache of the prompt holds, to compare ``REACHES``; None: as many
        as the prompts have, to compare ``LAYOUTS``.
    """
    import jax

    from maxtext_overrides.config.loading import load
    from maxtext_overrides.sampler.decode import FASTEST_LAYOUT, DecodeEngine
    from rlax_plugin.batching.decode_engine import Prefill
    from rlax_plugin.config.loading import resolve
    from rlax_plugin.types import SamplingParams

    name, model = WORKS[work]
    config = load(
        resolve(CONFIGS / name, [*model, "scan_layers=true", *keys]),
        **FASTEST_LAYOUT,
        per_device_batch_size=SLOTS // jax.device_count(),
        gradient_accumulation_steps=1,
        max_prefill_predict_length=longest or prompt_tokens,
        max_target_length=(longest or prompt_tokens) + STEPS + 1,
        enable_checkpointing=False,
        async_checkpointing=False,
    )
    engine = DecodeEngine(config, group_size=SAMPLES, prompt_tokens=prompt_tokens)
    reaches, ways = engine._reaches, REACHES if longest else LAYOUTS
    rng = np.random.default_rng(0)
    weights: dict[str, Mapping[str, Any]] = {}
    for way in ways:
        arrays = {
            name: jax.device_put((0.02 * rng.normal(size=like.shape)).astype(like.dtype))
            for name, like in engine.variables_like().items()
        }
        if way != "published":
            engine.lay_out(arrays)
        weights[way] = arrays
    slots = np.arange(SLOTS).reshape(-1, SAMPLES).tolist()
    prompts = [rng.integers(1, config.vocab_size, prompt_tokens).astype(np.int32) for _ in slots]
    sampling = SamplingParams(max_new_tokens=STEPS + 1)
    requests = [
        Prefill(tokens, tuple(taken), tuple(taken), sampling)
        for tokens, taken in zip(prompts, slots, strict=True)
    ]
    spent: Times = {way: {"prefill": [], "decode": []} for way in ways}
    for turn in range(1 + turns):
        for way in ways:
            engine._reaches = reaches[-1:] if way == "all places" else reaches
            engine.reset()
            jax.block_until_ready(engine._state)  # clearing the caches does not count
            start = time.perf_counter()
            engine.insert(weights[way], requests)
            engine.read([0])  # returns when the prompts are there
            filled = time.perf_counter()
            engine.decode(weights[way], STEPS, stop_when_free=False)
            end = time.perf_counter()
            if turn:
                spent[way]["prefill"].append(filled - start)
                spent[way]["decode"].append((end - filled) / STEPS)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=WORKS, default="smollm2")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=44)
    parser.add_argument("--longest", type=int, help="tokens of the caches of prompts")
    parser.add_argument("--json", type=Path, help="also add the figures to this file, a line each")
    parser.add_argument("keys", nargs="*", help="MaxText keys, as key=value")
    args = parser.parse_args()

    load_before = os.getloadavg()[0]
    spent = measure(args.work, args.keys, args.turns, args.prompt_tokens, args.longest)
    result: dict[str, Any] = {"work": args.work, "keys": args.keys, "turns": args.turns}
    result |= {"longest": args.longest, "prompt_tokens": args.prompt_tokens, "decode_steps": STEPS}
    result["load"] = f"{load_before:.1f} to {os.getloadavg()[0]:.1f}"
    prompts = SLOTS // SAMPLES
    title = f"{args.work}: {prompts} prompts of {args.prompt_tokens} tokens, {SLOTS} slots"
    table = Table(title=" ".join([title, *args.keys]))
    for column in ("way", "all prompts ms, median", "least", "decode step ms, median", "least"):
        table.add_column(column, justify="right")
    for way, times in spent.items():
        medians = {f"{phase}_s": statistics.median(found) for phase, found in times.items()}
        least = {f"least_{phase}_s": min(found) for phase, found in times.items()}
        result[way] = medians | least
        order = ("prefill_s", "least_prefill_s", "decode_s", "least_decode_s")
        table.add_row(way, *(f"{1e3 * result[way][name]:.0f}" for name in order))
    first, second = spent
    ratios = {
        phase: result[second][f"{phase}_s"] / result[first][f"{phase}_s"]
        for phase in ("prefill", "decode")
    }
    Console(width=110).print(table)
    print(f"{second} / {first}: prefill {ratios['prefill']:.2f}, decode {ratios['decode']:.2f}")
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
