"""The gradient of one batch is the same however the batch is cut, laid out or spread.

A run takes three steps of plain gradient descent, each with another objective: one that averages
over tokens, one over sequences, and one with a KL to a reference policy. One compiled train step
holds all three, because compiling is most of what this costs; a batch says which one it is for.
"""

import jax
import numpy as np
import pytest
import tiny_loop as loops

from maxtext_overrides.trainer.scoring import target_logprobs_of
from maxtext_overrides.trainer.train_loop import Events, fresh_weights, run_train_loop
from rlax_plugin.build import registry_for
from rlax_plugin.config import RlaxSection
from rlax_plugin.objective import advantages, batches, loss
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.types import Group, Prompt, Rollout

OBJECTIVES = (
    {"preset": "dapo"},
    {"preset": "gspo"},
    {"preset": "grpo", "kl": {"coefficient": 0.04, "placement": "loss"}},
)
GROUPS, LENGTH, VOCAB = 4, 16, 64
LENGTHS = (1, 2, 5, 11)  # completion tokens of a group's samples
DESCENT = (
    "opt_type=sgd",
    "learning_rate=1.0",
    "learning_rate_final_fraction=1.0",
    "gradient_clipping_threshold=0.0",
)
ARRAYS = batches.ARRAYS | {
    "rl_reference_logprobs": np.dtype(np.float32),
    "rl_objective": np.dtype(np.int32),
}


def section_of(chosen, sequences_per_row):
    return RlaxSection(
        plugins=("rlax_objectives",),
        prompt_source={"name": "none"},
        rewards=({"name": "none"},),
        rollouts={"group_size": len(LENGTHS), "groups_per_step": GROUPS, "max_new_tokens": 11},
        objective=chosen,
        batches={"sequences_per_row": sequences_per_row},
    )


def slots_of(chosen, sequences_per_row=1):
    section = section_of(chosen, sequences_per_row)
    context = BuildContext(run_dir=None, seed=0, section=section)
    registry = registry_for(section)
    return loss.resolve(
        section, lambda kind, choice, key: registry.part(kind, choice, key, context)
    )


def groups_of(step):
    """Random samples, drawn by a model that is not far from one that knows nothing."""
    rng = np.random.default_rng(step)

    def rollout(group, index, length):
        return Rollout(
            group_id=group,
            index=index,
            seed=0,
            tokens=rng.integers(0, VOCAB, length).astype(np.int32),
            logprob_full=rng.normal(-np.log(VOCAB), 0.3, length).astype(np.float32),
            logprob_sampled=np.zeros(length, np.float32),
            versions=np.full(length, step - 1, np.int32),
            finish_reason="stop",
            reward=float(rng.normal()),
        )

    return [
        Group(
            id=group,
            attempt=1,
            prompt=Prompt(str(group), rng.integers(0, VOCAB, 2 + group).astype(np.int32), "", ""),
            rollouts=tuple(rollout(group, i, length) for i, length in enumerate(LENGTHS)),
        )
        for group in range(GROUPS)
    ]


def batch_of(step, rows, sequences_per_row):
    """The batch of a step, for the objective of that number."""
    slots = slots_of(OBJECTIVES[step - 1])
    groups = advantages.of_groups(slots.advantages, groups_of(step))
    arrays = batches.build_batch(
        step, groups, rows=rows, length=LENGTH, sequences_per_row=sequences_per_row
    ).arrays
    reference_bt = arrays["rl_behaviour_logprobs"] + 0.3 * np.sin(arrays["targets"])
    which_bt = np.full((rows, LENGTH), step - 1, np.int32)
    return arrays | {
        "rl_reference_logprobs": reference_bt.astype(np.float32),
        "rl_objective": which_bt,
    }


def switched(sequences_per_row):
    """The objective that ``rl_objective`` says."""
    losses = [loss.make_loss(slots_of(chosen, sequences_per_row)) for chosen in OBJECTIVES]

    def of_the_batch(scores, data):
        branches = [lambda data, f=f: f(scores, data)[:2] for f in losses]
        total, weight = jax.lax.switch(data["rl_objective"].max(), branches, data)
        return total, weight, {"weight": weight}

    return of_the_batch


def descend(directory, *argv, sequences_per_row=1, look=lambda loop: {}):
    """Name -> figure of three steps: losses, weights and what was added to them; see ``look``."""
    config = loops.configure(directory, *DESCENT, *argv, steps=len(OBJECTIVES))
    # MaxText's default generator draws other weights on another mesh.
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    found, weights = {}, []

    def keep_weights(loop):
        arrays = fresh_weights(loop)
        assert all(len(a.sharding.device_set) == len(jax.devices()) for a in arrays.values())
        host = [np.asarray(arrays[name], np.float64).ravel() for name in sorted(arrays)]
        weights.append(np.concatenate(host))

    def on_start(loop):
        keep_weights(loop)
        found.update(look(loop))

    def on_step_end(loop, metrics):
        keep_weights(loop)
        preset = OBJECTIVES[loop.completed - 1]["preset"]
        found[f"update {preset}"] = weights[-1] - weights[-2]
        for name in ("learning/loss", "learning/grad_norm", "learning/total_weights", "weight"):
            found[f"{name} {preset}"] = np.asarray(metrics[name])

    events = Events(
        batches=lambda step: batch_of(step, config.global_batch_size_to_load, sequences_per_row),
        on_step_end=on_step_end,
        on_start=on_start,
    )
    run_train_loop(config, events, arrays=ARRAYS, objective=switched(sequences_per_row))
    return found


def distance(found, expected):
    """Of two vectors or numbers, relative to the second."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def assert_same(found, expected, tolerance):
    for name, value in expected.items():
        assert np.all(np.isfinite(value)) and np.linalg.norm(value) > 1e-3, name
        assert distance(found[name], value) < tolerance, name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One micro-batch of 16 rows, a sample in each."""
    return descend(tmp_path_factory.mktemp("whole"), "per_device_batch_size=16")


def test_four_uneven_micro_batches_give_the_gradient_of_one(tmp_path, whole):
    data = batch_of(1, 16, 1)
    # MaxText deals rows out: micro-batch i gets sample i of every group.
    assert [data["rl_mask"][i::4].sum() for i in range(4)] == [4, 8, 20, 44]
    argv = ("per_device_batch_size=4", "gradient_accumulation_steps=4")
    assert_same(descend(tmp_path, *argv), whole, 2e-6)


def sample_logprobs(logprobs_bt, data, sequences_per_row):
    """The completions' log-probs, sample by sample in the order of the groups."""
    sizes = batches.sizes(groups_of(1))
    places = batches.place(sizes, len(logprobs_bt), LENGTH, sequences_per_row)
    spans = [
        (row, slice(start, start + size))
        for (row, start, _), size in zip(places, sizes, strict=True)
    ]
    return [logprobs_bt[row, t][data["rl_mask"][row, t] > 0] for row, t in spans]


def test_packed_rows_give_the_gradient_of_a_sample_per_row(tmp_path, whole):
    layouts = {1: 16, 4: 8}  # samples per row at most -> rows

    def look(loop):
        forward = jax.jit(lambda state, data: target_logprobs_of(loop.graph, state, data, 1.0))
        for sequences_per_row, rows in layouts.items():
            data = batch_of(1, rows, sequences_per_row)
            with loop.shardings():
                logprobs_bt = forward(loop.model_state, data)
            parts = sample_logprobs(np.asarray(logprobs_bt), data, sequences_per_row)
            logprobs.append(np.concatenate(parts))
        return {}

    logprobs = []
    found = descend(tmp_path, "per_device_batch_size=8", sequences_per_row=4, look=look)
    alone, packed = logprobs
    assert alone.size == GROUPS * sum(LENGTHS) and alone.std() > 0.1
    np.testing.assert_allclose(packed, alone, rtol=0, atol=1e-5)
    assert_same(found, whole, 2e-6)
