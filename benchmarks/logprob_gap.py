"""How far the log-probs of the train step lie from the sampler's, at equal weights.

One batch of samples is drawn by the decode engine, as a worker draws it, and scored twice with the
weights it was drawn with: by a train step, where the log-probs are a by-product of the gradient's
program, and by a forward pass of the same model that is compiled on its own. Shown for the two
settings that change the train step's program and not its mathematics: `remat_policy` (`full` saves
nothing, as RLAX does) and `record_internal_nn_metrics`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rlax_plugin.config import Algorithm, Objective
from rlax_plugin.objective.batches import ARRAYS, build_batch
from rlax_plugin.objective.loss import ObjectiveSlots
from rlax_plugin.types import Group, Prompt, Rollout, SamplingParams

CONFIG = Path(__file__).parent.parent / "configs" / "bench_w2.yml"
MODEL = {
    "base_num_decoder_layers": 4,
    "base_emb_dim": 256,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "base_mlp_dim": 1024,
    "vocab_size": 4096,
    # Tied embeddings would make random weights repeat the last token. An output head of its own
    # gives logits of variance 1, and the temperature the spread of a trained model's.
    "logits_via_embedding": False,
}
ROWS, PROMPT, COMPLETION = 16, 16, 48
TEMPERATURE = 0.3
SETTINGS = [  # of the trainer
    {"remat_policy": "none"},
    {"remat_policy": "full"},
    {"remat_policy": "none", "record_internal_nn_metrics": 1},
    {"remat_policy": "full", "record_internal_nn_metrics": 1},
]
Gap = dict[str, float]


class Sampler:
    """Draws completions with a worker's decode engine, compiled once for all trainers."""

    def __init__(self, argv: list[str]):
        from maxtext_overrides.config.loading import load
        from maxtext_overrides.sampler.decode import FASTEST_LAYOUT, DecodeEngine

        self._engine = DecodeEngine(load(argv, **FASTEST_LAYOUT))

    def group(self, weights: Mapping[str, Any]) -> Group:
        """Completions of one random prompt each, always as long as possible."""
        from rlax_plugin.rollouts.slots import Prefill

        rng = np.random.default_rng(0)
        sampling = SamplingParams(TEMPERATURE, max_new_tokens=COMPLETION)
        prompt = rng.integers(1, MODEL["vocab_size"], PROMPT).astype(np.int32)
        slots = tuple(range(ROWS))
        self._engine.insert(weights, [Prefill(prompt, slots, slots, sampling)])
        rollouts = tuple(
            Rollout(
                group_id=0,
                index=sample.slot,
                seed=sample.slot,
                tokens=sample.tokens,
                logprob_full=sample.logprob_full,
                logprob_sampled=sample.logprob_sampled,
                versions=np.zeros(len(sample.tokens), np.int32),
                finish_reason="length",
                reward=float(sample.slot % 2),
            )
            for sample in self._engine.decode(weights, COMPLETION, stop_when_free=False)
        )
        advantages = np.where(np.arange(ROWS) % 2, 1.0, -1.0)
        return Group(0, 1, Prompt("0", prompt, "", ""), rollouts, advantages)


def gaps(argv: list[str], settings: Mapping[str, Any], sampler: Sampler) -> dict[str, Gap]:
    """Gaps of one trainer's first step, and the seconds its second one takes."""
    import jax
    import jax.numpy as jnp
    from rlax_maxtext.policies import Policies

    from maxtext_overrides.config.loading import initialize
    from maxtext_overrides.trainer.train_loop import Events, Loop, fresh_weights, run_train_loop

    config = initialize(argv, **settings)
    # As for two updates per step: log pi_old is computed by a forward pass before the first.
    slots = ObjectiveSlots(*[None] * 5, (), Algorithm(old_policy="proximal"), updates_per_step=2)
    section = config.rlax.model_copy(update={"objective": Objective(mini_batches=2)})
    policies = Policies(config, slots, section, config.base_output_directory)
    batch: dict[str, np.ndarray] = {}
    steps: list[tuple[float, np.ndarray]] = []

    def start(loop: Loop) -> None:
        group = sampler.group(fresh_weights(loop))
        laid_out = build_batch(1, [group], rows=ROWS, length=config.max_target_length)
        batch.update(policies.complete(loop, 1, laid_out.arrays))

    def policy_gradient(scores: Any, data: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        mask_bt = data["rl_mask"].astype(jnp.float32)
        loss_sum = -(scores.logprobs_bt * data["rl_advantages"] * mask_bt).sum()
        return loss_sum, mask_bt.sum(), {"logprobs_bt": scores.logprobs_bt}

    def on_step_end(loop: Loop, metrics: Mapping[str, Any]) -> bool:
        jax.block_until_ready(loop.model_state)
        steps.append((time.perf_counter(), np.asarray(metrics["logprobs_bt"])))
        return False

    events = Events(lambda step: batch, on_step_end, start)
    run_train_loop(config, events, arrays=ARRAYS, objective=policy_gradient)
    trained_bt = batch["rl_mask"] > 0
    train, forward, drawn = (
        x_bt[trained_bt].astype(np.float64)
        for x_bt in (steps[0][1], batch["rl_old_logprobs"], batch["rl_behaviour_logprobs"])
    )
    return {
        "train - sampler": _gap(train - drawn),
        "train - forward": _gap(train - forward),
        "forward - sampler": _gap(forward - drawn),
        "sampler": {"mean_nats": float(drawn.mean())},
        "step": {"seconds": min(np.diff([end_s for end_s, _ in steps]))},
    }


def _gap(difference: np.ndarray) -> Gap:
    nats = np.abs(difference)
    p95 = float(np.quantile(nats, 0.95))
    return {"mean": float(nats.mean()), "p95": p95, "max": float(nats.max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    result = []
    with tempfile.TemporaryDirectory() as directory:
        for dtype in ("float32", "bfloat16"):
            argv = [
                str(CONFIG),
                *(f"{key}={value}" for key, value in MODEL.items()),
                f"base_output_directory={directory}",
                f"dtype={dtype}",
                f"per_device_batch_size={ROWS}",
                f"max_prefill_predict_length={PROMPT}",
                f"max_target_length={PROMPT + COMPLETION}",
                f"rlax.rollouts.temperature={TEMPERATURE}",
                "steps=3",
            ]
            sampler = Sampler(argv)
            for settings in SETTINGS:
                found = gaps(argv, settings, sampler)
                result.append({"dtype": dtype, "settings": settings, **found})

    pairs = [name for name in result[0] if " - " in name]
    mean = result[0]["sampler"]["mean_nats"]
    tokens = f"{ROWS * COMPLETION} tokens, whose log-probs are {mean:.1f} on average"
    table = Table(title=f"Gap in nats: mean, p95, max over {tokens}")
    for column in ("dtype", "remat_policy", "record", *pairs, "step ms"):
        table.add_column(column)
    for row in result:
        settings = row["settings"]
        table.add_row(
            row["dtype"],
            settings["remat_policy"],
            str(settings.get("record_internal_nn_metrics", 0)),
            *(" ".join(f"{value:.1e}" for value in row[pair].values()) for pair in pairs),
            f"{1e3 * row['step']['seconds']:.0f}",
        )
    Console(width=130).print(table)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
