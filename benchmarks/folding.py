"""Times train steps on a CPU with matrix products folded to two axes, and without.

MaxText's own train loop gets a train step that has two programs and alternates between them, step
by step. CPU time is that of the process, and so distinguishes the two even if other programs use
the cores. A peak of memory belongs to one program with ``--only``. Further arguments are MaxText
keys:

    python benchmarks/folding.py --work smollm2 dtype=bfloat16 per_device_batch_size=16 \\
        gradient_accumulation_steps=4

``smollm2`` is a model of the shape of SmolLM2-135M with random weights, and 64 rows of 64 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

CONFIGS = Path(__file__).parent.parent / "configs"
SMOLLM2 = (
    "base_num_decoder_layers=30",
    "base_emb_dim=576",
    "base_num_query_heads=9",
    "base_num_kv_heads=3",
    "base_mlp_dim=1536",
    "vocab_size=49152",
    "rlax.prompt_source.vocab_size=49152",
    "max_target_length=64",
    "adam_weight_decay=0.0",
    "gradient_clipping_threshold=1.0",
)
WORKS = {
    "demo": ("demo.yml", ("dataset_type=synthetic", "enable_checkpointing=false")),
    "w1": ("bench_w1.yml", ()),
    "w2": ("bench_w2.yml", ()),
    "smollm2": ("bench_w2.yml", SMOLLM2),
}
WAYS = ("stock", "folded")


def batch_of(rows: int, length: int, vocabulary: int) -> Mapping[str, np.ndarray]:
    """Returns random tokens; the second half of each row trains."""
    from rlax_plugin.objective.batches import ARRAYS

    rng = np.random.default_rng(0)
    arrays = {name: spec.zeros(rows, length) for name, spec in ARRAYS.items()}
    arrays["inputs"][:] = rng.integers(0, vocabulary, (rows, length))
    arrays["targets"][:] = rng.integers(0, vocabulary, (rows, length))
    for side in ("inputs", "targets"):
        arrays[f"{side}_position"][:] = np.arange(length)
        arrays[f"{side}_segmentation"][:] = 1
    arrays["rl_mask"][:] = np.arange(length) >= length // 2
    arrays["rl_behaviour_logprobs"][:] = -np.log(vocabulary)
    arrays["rl_advantages"][:] = rng.normal(size=(rows, 1))
    return arrays


class Turns:
    """A train step that is compiled once for each way, and alternates between the ways.

    Attributes:
      spent: way -> wall and CPU seconds of each of its steps but the first, which compiles.
    """

    def __init__(self, ways: Sequence[str], jit_train_step: Callable[..., Any]):
        self.spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        self._jit_train_step = jit_train_step
        self._begun = 0

    def jit_train_step(
        self, config: Any, model: Any, state: Any, *shardings: Any, **named: Any
    ) -> Turns:
        """Replaces MaxText's function; the arguments after ``state`` include the step itself."""
        state_shardings, data_sharding, train_step, params_shardings = shardings
        self._programs = {
            way: self._jit_train_step(
                config,
                model,
                state,
                state_shardings,
                data_sharding,
                _traced(train_step, way),
                params_shardings,
                **named,
            )
            for way in self.spent
        }
        return self

    def lower(self, *arguments: Any) -> Any:
        """Returns the lowered program of one way; MaxText logs the compiler's report on it."""
        return self._programs[next(iter(self.spent))].lower(*arguments)

    def __call__(self, *arguments: Any) -> Any:
        import jax

        turn, place = divmod(self._begun, len(self.spent))
        way = list(self.spent)[place]
        self._begun += 1
        start = time.perf_counter(), time.process_time()
        result = jax.block_until_ready(self._programs[way](*arguments))
        if turn:
            wall_s, cpu_s = time.perf_counter() - start[0], time.process_time() - start[1]
            self.spent[way].append((wall_s, cpu_s))
        return result


def _traced(train_step: Callable[..., Any], way: str) -> Callable[..., Any]:
    """Returns a separate function for each way, so that JAX traces each."""
    from maxtext_overrides import folding

    def step(*arguments: Any) -> Any:
        with mock.patch.object(folding, "pays", lambda: way == "folded"):
            return train_step(*arguments)

    return step


def run(work: str, keys: Sequence[str], turns: int, ways: Sequence[str]) -> Turns:
    """Trains ``turns`` steps in each way after one that compiles."""
    from maxtext_overrides.config.loading import initialize
    from maxtext_overrides.trainer.train_loop import Events, run_train_loop
    from maxtext_overrides.upstream import lean_imports
    from rlax_plugin.build import build_part
    from rlax_plugin.config.loading import resolve as resolve_config
    from rlax_plugin.objective import batches as layout
    from rlax_plugin.objective.loss import make_loss, resolve
    from rlax_plugin.ports.protocols import BuildContext

    name, model = WORKS[work]
    steps = (1 + turns) * len(ways)
    with tempfile.TemporaryDirectory() as directory:
        argv = [*model, f"base_output_directory={directory}", f"steps={steps}", *keys]
        config = initialize(resolve_config(CONFIGS / name, argv))
        context = BuildContext(run_dir=Path(directory), seed=0, section=config.rlax)
        slots = resolve(config.rlax, lambda kind, part, key: build_part(kind, part, key, context))
        train_utils = lean_imports.import_trainer().train_utils
        in_turns = Turns(ways, train_utils.jit_train_step)
        rows = int(config.per_device_batch_size) * config.gradient_accumulation_steps
        batch = batch_of(rows, config.max_target_length, config.vocab_size)
        with mock.patch.object(train_utils, "jit_train_step", in_turns.jit_train_step):
            run_train_loop(
                config,
                Events(batches=lambda step: batch, on_step_end=lambda loop, metrics: None),
                arrays=layout.ARRAYS,
                objective=make_loss(slots),
            )
    return in_turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=WORKS, default="w2")
    parser.add_argument("--only", choices=WAYS, help="measure no other")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also add the figures to this file, a line each")
    parser.add_argument("keys", nargs="*", help="MaxText keys, as key=value")
    args = parser.parse_args()

    ways = (args.only,) if args.only else WAYS
    load_before = os.getloadavg()[0]
    spent = run(args.work, args.keys, args.turns, ways).spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    loads = f"{load_before:.1f} to {os.getloadavg()[0]:.1f}"

    result: dict[str, Any] = {"work": args.work, "keys": args.keys, "peak_mib": peak, "load": loads}
    table = Table(title=" ".join([args.work, *args.keys]))
    for column in ("products", "step ms, median", "least", "CPU ms, median", "least"):
        table.add_column(column, justify="right")
    for way, found in spent.items():
        figures = [f(times) for times in zip(*found, strict=True) for f in (statistics.median, min)]
        names = ("step_s", "least_s", "cpu_s", "least_cpu_s")
        result[way] = dict(zip(names, figures, strict=True))
        table.add_row(way, *(f"{1e3 * figure:.0f}" for figure in figures))
    Console(width=100).print(table)
    print(f"peak memory {peak:.0f} MiB; load {loads}")
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
