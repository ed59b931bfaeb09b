"""The yardstick of one process: the run's own engine and MaxText's own train step, in turns.

A step fills the decode slots with 8 prompts x 8 samples and decodes until all have ended, scores
them by parity, builds the batch, and lets MaxText's loop make one update with the project's loss;
then the slots get the new weights by reference. Model, shapes, sampling and objective are those of
``configs/bench_<work>.yml``. There is no controller, no second thread of Python, no record and no
check of weights: what ``rlax.launcher={name: colocated}`` takes beyond this is what those cost.

    python benchmarks/alternation.py --work w1 --steps 50 --json out.json
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from itertools import batched
from pathlib import Path
from typing import Any

import jax
import numpy as np
from bare_loop import Times, command_line

from rlax_plugin.base.types import (
    Episode,
    Prompt,
    Sampled,
    SamplingParams,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
)
from rlax_plugin.build import registry_for
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.rollout.batching.decode_engine import DecodeSlots, Prefill
from rlax_plugin.training.objective import advantages, batches
from rlax_plugin.training.objective.loss import make_loss
from rlax_plugin.training.objective.update_sums import UPDATE_ARRAYS, update_sums
from rlax_plugin.weights.memory_copies import on_devices

CONFIGS = Path(__file__).parents[1] / "configs"


def prefills(section: RlaxSection, step: int, prompts: tuple[Prompt, ...]) -> Iterator[Prefill]:
    """Yields each prompt with the slots and the seeds of its samples."""
    rollouts = section.rollouts
    sampling = SamplingParams(
        temperature=rollouts.last_temperature,
        top_k=rollouts.top_k,
        top_p=rollouts.top_p,
        max_new_tokens=rollouts.max_new_tokens,
    )
    slots = batched(range(len(prompts) * rollouts.group_size), rollouts.group_size)
    for prompt, own in zip(prompts, slots, strict=True):
        yield Prefill(prompt.tokens, own, tuple(step * rollouts.slots + s for s in own), sampling)


def generate(
    section: RlaxSection, slots: DecodeSlots, weights: Any, step: int, prompts: tuple[Prompt, ...]
) -> tuple[ScoredGroup, ...]:
    """Returns a scored group for each prompt, all sampled with weights of version step - 1."""
    requests = list(prefills(section, step, prompts))
    slots.insert(weights, requests)
    outputs = {}
    while len(outputs) < len(prompts) * section.rollouts.group_size:
        ended = slots.decode(weights, section.rollouts.max_new_tokens, False)
        outputs |= {output.slot: output for output in ended}

    def episode(index: int, request: Prefill, prompt: Prompt) -> Episode:
        output = outputs[request.slots[index]]
        versions = np.full(output.tokens.size, step - 1, np.int32)
        sampled = Sampled(
            request.seeds[index], output.tokens, output.logprobs, versions, finish="length"
        )
        return Episode(index, (Trajectory((Turn(prompt.tokens, sampled),)),))

    def group(number: int, request: Prefill, prompt: Prompt) -> ScoredGroup:
        size = len(request.slots)
        episodes = tuple(episode(index, request, prompt) for index in range(size))
        rewards = [float(sample.tokens.sum() % 2) for e in episodes for sample in e.sampled]
        scores = tuple(Score(reward, (reward,)) for reward in rewards)
        return ScoredGroup(number, 1, prompt, episodes, scores)

    return tuple(group(n, r, p) for n, (r, p) in enumerate(zip(requests, prompts, strict=True)))


def run(work: str, steps: int, warmup: int = 2, seed: int = 0) -> dict[str, Any]:
    """Times ``steps`` steps after ``warmup`` untimed ones (compilation)."""
    from rlax_jetstream import JetstreamConfig

    from maxtext_overrides.config.loading import initialize
    from maxtext_overrides.trainer.train_loop import Events, Loop, fresh_weights, run_train_loop
    from maxtext_overrides.worker_slots import make_slots

    with tempfile.TemporaryDirectory() as directory:
        own = (f"base_output_directory={directory}", f"steps={warmup + steps}", f"rlax.seed={seed}")
        config = resolve(CONFIGS / f"bench_{work}.yml", own)
        section, context = config.section, BuildContext.outside_run(config.section, config)
        registry = registry_for(section)
        objective = registry.slots(context)
        source = registry.part(
            "prompt_source", section.prompt_source, "rlax.prompt_source", context
        )
        drawn = batched(source.prompts("train"), section.rollouts.groups_per_step)
        of_trainer = initialize(config)
        slots = make_slots(JetstreamConfig(), context)
        weights: dict[str, Any] = {}
        times, losses = Times(warmup), [0.0]

        def use(loop: Loop) -> None:
            weights.update(on_devices(dict(fresh_weights(loop)), slots.variables_like()))
            slots.lay_out(weights)

        def batch(step: int) -> Mapping[str, np.ndarray]:
            groups = generate(section, slots, weights, step, next(drawn))
            given = advantages.of_groups(objective.advantages, groups, step)
            trained = TrainBatch(step, groups, given)
            arrays = batches.arrays_of(section, registry.algorithm(section), trained)
            times.generated()
            return arrays

        def on_step_end(loop: Loop, metrics: Mapping[str, Any]) -> None:
            use(loop)
            losses[0] = float(metrics["learning/loss"])
            jax.block_until_ready(weights)
            times.trained()

        events = Events(
            batches=batch,
            on_step_end=on_step_end,
            on_start=use,
            update=lambda arrays: dict(arrays) | update_sums(arrays),
            update_arrays=UPDATE_ARRAYS,
        )
        arrays = batches.device_arrays(section)
        run_train_loop(of_trainer, events, arrays=arrays, objective=make_loss(objective))
    return {"steps": steps, "final_loss": losses[0], **times.figures()}


if __name__ == "__main__":
    command_line(__doc__, run)
