"""Times train steps per real token: samples packed into rows against one sample per row.

The same samples, with long-tailed lengths, go through MaxText's own train loop twice, in one
process, alternating by whole loops: padded, packed, padded, packed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rlax_plugin.objective.batches import build_arrays, sizes
from rlax_plugin.objective.placing import place
from rlax_plugin.testing import make_batch, make_episode, make_group, make_prompt, make_sampled
from rlax_plugin.types import ScoredGroup, TrainBatch

CONFIG = Path(__file__).parent.parent / "configs" / "bench_w2.yml"
GROUPS, SAMPLES, PROMPT, COMPLETION = 8, 4, 16, 240
SEQUENCES_PER_ROW = 8
SKIP = 2  # first steps: compilation and warm caches
MODEL = ("base_num_decoder_layers=4", "base_emb_dim=256", "base_mlp_dim=1024", "vocab_size=4096")


def batch_of(step: int, rng: np.random.Generator) -> TrainBatch:
    """Returns samples of log-normal lengths, median 40, cut at the longest completion allowed."""
    groups: list[ScoredGroup] = []
    for number in range(GROUPS):
        lengths = np.clip(rng.lognormal(np.log(40), 0.9, SAMPLES), 1, COMPLETION).astype(int)
        prompt = make_prompt(str(number), tokens=rng.integers(1, 4096, PROMPT).astype(np.int32))
        made = make_group([float(index % 2) for index in range(SAMPLES)], id=number)
        episodes = tuple(
            make_episode(
                make_sampled(
                    tokens=rng.integers(1, 4096, length),
                    logprobs=np.full(length, -8.0, np.float32),
                    version=step - 1,
                ),
                index=index,
                prompt=prompt,
            )
            for index, length in enumerate(lengths)
        )
        groups.append(replace(made, prompt=prompt, episodes=episodes))
    return make_batch(step, groups)


def step_times(
    batches: list[Mapping[str, np.ndarray]], sequences_per_row: int, directory: str
) -> list[float]:
    """Returns the seconds of each train step but the first ones."""
    import jax

    from maxtext_overrides.config.loading import initialize
    from maxtext_overrides.trainer.train_loop import Events, Loop, run_train_loop
    from rlax_plugin.build import build_part
    from rlax_plugin.config.loading import resolve as resolve_config
    from rlax_plugin.objective import batches as layout
    from rlax_plugin.objective.loss import make_loss, resolve
    from rlax_plugin.ports.protocols import BuildContext

    given = resolve_config(
        CONFIG,
        [
            *MODEL,
            f"base_output_directory={directory}",
            f"steps={len(batches)}",
            f"per_device_batch_size={batches[0]['inputs'].shape[0]}",
            f"max_target_length={PROMPT + COMPLETION}",
            f"rlax.batches.sequences_per_row={sequences_per_row}",
            f"rlax.rollouts.max_new_tokens={COMPLETION}",
        ],
    )
    config = initialize(given)
    context = BuildContext(run_dir=Path(directory), seed=0, section=config.rlax)
    slots = resolve(config.rlax, lambda kind, choice, key: build_part(kind, choice, key, context))
    ends_s = []

    def on_step_end(loop: Loop, metrics: Mapping[str, Any]) -> bool:
        jax.block_until_ready((loop.model_state, metrics))
        ends_s.append(time.perf_counter())
        return False

    events = Events(batches=lambda step: batches[step - 1], on_step_end=on_step_end)
    run_train_loop(config, events, arrays=layout.ARRAYS, objective=make_loss(slots))
    return np.diff(ends_s)[SKIP - 1 :].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    work = [batch_of(step, rng) for step in range(1, args.steps + 1)]
    length, samples = PROMPT + COMPLETION, GROUPS * SAMPLES
    packed_rows = next(
        rows
        for rows in range(1, samples + 1)
        if all(place(sizes(one.groups), rows, length, SEQUENCES_PER_ROW) for one in work)
    )
    layouts = {"padded": (samples, 1), "packed": (packed_rows, SEQUENCES_PER_ROW)}
    real = statistics.mean(sum(sizes(one.groups)) for one in work)
    seconds: dict[str, list[float]] = {name: [] for name in layouts}
    for _ in range(args.rounds):
        for name, (rows, per_row) in layouts.items():
            batches = [
                build_arrays(one, rows=rows, length=length, sequences_per_row=per_row)
                for one in work
            ]
            with tempfile.TemporaryDirectory() as directory:
                seconds[name] += step_times(batches, per_row, directory)

    table = Table(title=f"{samples} samples, {real:.0f} real tokens a step, rows of {length}")
    for column in ("layout", "rows", "real tokens", "step ms", "us per real token"):
        table.add_column(column, justify="right")
    result: dict[str, Any] = {"real_tokens": real}
    for name, (rows, _) in layouts.items():
        step_s = statistics.median(seconds[name])
        result[name] = {"rows": rows, "step_s": step_s}
        share = f"{100 * real / (rows * length):.0f} %"
        table.add_row(name, str(rows), share, f"{1e3 * step_s:.0f}", f"{1e6 * step_s / real:.0f}")
    result["ratio"] = result["padded"]["step_s"] / result["packed"]["step_s"]
    console = Console(width=100)
    console.print(table)
    console.print(f"packed is {result['ratio']:.2f} times as fast per real token")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
