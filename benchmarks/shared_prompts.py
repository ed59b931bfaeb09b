"""Times train steps with shared prompts against plain rows, in the bare loop and in MaxText's loop.

The same samples, 8 completions of 5 tokens for each prompt of 104 tokens, go through both layouts
in turns: step by step in the bare loop, and by whole loops in MaxText's, whose steps are then
compared in pairs. The model has random weights. CPU time is what counts, because it depends less on
what else a machine does; wall time is reported as well. A ratio is the mean over pairs, on a
logarithmic scale, with its interval of 95 % (Student's t).

    python benchmarks/shared_prompts.py --work w2-long
    python benchmarks/shared_prompts.py --work smollm2 --groups 8 --parts 4 --steps 2 --turns 2
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bare_loop import SAMPLES, WORKS, Work
from scipy import stats

from rlax_plugin.objective.batches import arrays_of
from rlax_plugin.testing import make_batch, make_episode, make_group, make_prompt, make_sampled
from rlax_plugin.types import TrainBatch

CONFIG = Path(__file__).parent.parent / "configs" / "bench_w2.yml"
Spent = tuple[float, float]  # seconds of CPU time and of wall time


def clock() -> Spent:
    return time.process_time(), time.perf_counter()


def since(start: Spent) -> Spent:
    cpu_s, wall_s = clock()
    return cpu_s - start[0], wall_s - start[1]


def batch_of(work: Work, groups: int, step: int, rng: np.random.Generator) -> TrainBatch:
    """Returns random samples, all as long as possible."""
    made = []
    for number in range(groups):
        tokens = rng.integers(1, work.vocab, work.prompt_tokens).astype(np.int32)
        prompt = make_prompt(str(number), tokens=tokens)
        group = make_group([float(index % 2) for index in range(SAMPLES)], id=number)
        episodes = tuple(
            make_episode(
                make_sampled(
                    tokens=rng.integers(1, work.vocab, work.new_tokens),
                    logprobs=np.full(work.new_tokens, -math.log(work.vocab), np.float32),
                    version=step - 1,
                ),
                index=index,
                prompt=prompt,
            )
            for index in range(SAMPLES)
        )
        made.append(replace(group, prompt=prompt, episodes=episodes))
    return make_batch(step, made)


def bare_turns(work: Work, groups: int, parts: int, turns: int) -> list[tuple[Spent, Spent]]:
    """Returns (plain, shared) of each turn: one step of each, of ``groups / parts`` prompts."""
    import bare_loop
    import jax

    rng = np.random.default_rng(0)
    prompts = rng.integers(0, work.vocab, (groups // parts, work.prompt_tokens), dtype=np.int32)
    shape = (len(prompts) * SAMPLES, work.new_tokens)
    tokens = rng.integers(0, work.vocab, shape, dtype=np.int32)
    old = np.full(shape, -math.log(work.vocab), np.float32)
    batch = (prompts, tokens, old, rng.normal(size=len(tokens)).astype(np.float32))
    params = jax.jit(bare_loop.init, static_argnums=0)(work, jax.random.key(0))
    state = bare_loop.optimizer.init(params)
    found = []
    for turn in range(1 + turns):  # the first one compiles
        spent = []
        for shared in (False, True):
            start = clock()
            params, state, value = bare_loop.train(work, params, state, batch, shared)
            jax.block_until_ready((params, value))
            spent.append(since(start))
        if turn:
            found.append((spent[0], spent[1]))
    return found


def keys(work: Work, groups: int, parts: int, steps: int, shared: bool) -> list[str]:
    """Returns the keys of MaxText's side."""
    answers = SAMPLES if shared else 1
    rows = groups * SAMPLES // answers
    return [
        f"base_num_decoder_layers={work.layers}",
        f"base_emb_dim={work.width}",
        f"base_num_query_heads={work.heads}",
        f"base_num_kv_heads={work.kv_heads or work.heads}",
        f"head_dim={work.width // work.heads}",
        f"base_mlp_dim={work.mlp}",
        f"vocab_size={work.vocab}",
        f"scan_layers={str(work.layers > 8).lower()}",  # as models of other libraries are converted
        f"steps={steps}",
        f"per_device_batch_size={rows // parts}",
        f"gradient_accumulation_steps={parts}",
        f"max_prefill_predict_length={work.prompt_tokens}",
        f"max_target_length={work.prompt_tokens + answers * work.new_tokens}",
        f"rlax.rollouts.max_prompt_tokens={work.prompt_tokens}",
        f"rlax.rollouts.max_new_tokens={work.new_tokens}",
        f"rlax.rollouts.groups_per_step={groups}",
        f"rlax.batches.sequences_per_row={answers}",
        f"rlax.batches.shared_prompts={str(shared).lower()}",
    ]


def system_steps(work: Work, groups: int, parts: int, steps: int, shared: bool) -> list[Spent]:
    """Returns each step of MaxText's loop but the first, which compiles."""
    import jax

    from maxtext_overrides.config.loading import initialize
    from maxtext_overrides.trainer.train_loop import Events, Loop, run_train_loop
    from rlax_plugin.build import build_part
    from rlax_plugin.config.loading import resolve as resolve_config
    from rlax_plugin.objective import batches as layout
    from rlax_plugin.objective.loss import make_loss, resolve
    from rlax_plugin.ports.protocols import BuildContext

    with tempfile.TemporaryDirectory() as directory:
        given = [
            *keys(work, groups, parts, 1 + steps, shared),
            f"base_output_directory={directory}",
        ]
        config = initialize(resolve_config(CONFIG, given))
        context = BuildContext(run_dir=Path(directory), seed=0, section=config.rlax)
        slots = resolve(
            config.rlax, lambda kind, choice, key: build_part(kind, choice, key, context)
        )
        rng = np.random.default_rng(0)
        found: list[Spent] = []
        start = clock()

        def batches(step: int) -> Mapping[str, np.ndarray]:
            return arrays_of(config.rlax, slots.algorithm, batch_of(work, groups, step, rng))

        def on_step_end(loop: Loop, metrics: Mapping[str, Any]) -> None:
            nonlocal start
            jax.block_until_ready((loop.model_state, metrics))
            found.append(since(start))
            start = clock()

        events = Events(batches=batches, on_step_end=on_step_end)
        run_train_loop(config, events, arrays=layout.ARRAYS, objective=make_loss(slots))
    gc.collect()
    return found[1:]


def ratio(pairs: Sequence[tuple[Spent, Spent]], kind: int) -> tuple[float, float, float]:
    """Returns plain / shared over the turns, and the ends of its interval; kind 0 is CPU time."""
    logs = [math.log(plain[kind] / shared[kind]) for plain, shared in pairs]
    middle, count = statistics.mean(logs), len(logs)
    half = math.inf
    if count > 1:
        half = stats.t.ppf(0.975, count - 1) * statistics.stdev(logs) / math.sqrt(count)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def report(what: str, pairs: Sequence[tuple[Spent, Spent]]) -> dict[str, Any]:
    """Prints and returns the figures of one loop."""
    found: dict[str, Any] = {"turns": pairs}
    for kind, name in enumerate(("cpu", "wall")):
        plain, shared = (statistics.median(pair[side][kind] for pair in pairs) for side in (0, 1))
        middle, low, high = ratio(pairs, kind)
        print(
            f"{what:7s} {name:4s} plain {plain:8.3f} s  shared {shared:8.3f} s  "
            f"ratio {middle:5.2f} ({low:.2f} to {high:.2f})",
            flush=True,
        )
        found[name] = {"plain_s": plain, "shared_s": shared, "ratio": [middle, low, high]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", choices=sorted(WORKS), default="w2-long")
    parser.add_argument("--groups", type=int, default=8, help="prompts of a step")
    parser.add_argument("--parts", type=int, default=1, help="micro-batches of MaxText's step")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of each turn, MaxText's")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=["bare", "maxtext"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    work = WORKS[args.work]
    result: dict[str, Any] = {"work": args.work, "groups": args.groups, "parts": args.parts}
    if args.only != "maxtext":
        pairs = bare_turns(work, args.groups, args.parts, args.turns)
        result["bare"] = report("bare", pairs)
        gc.collect()
    if args.only != "bare":
        pairs = []
        for _ in range(args.turns):
            plain, shared = (
                system_steps(work, args.groups, args.parts, args.steps, shared)
                for shared in (False, True)
            )
            pairs += zip(plain, shared, strict=True)
            print([(round(p[0], 2), round(s[0], 2)) for p, s in pairs], flush=True)
        result["maxtext"] = report("maxtext", pairs)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
