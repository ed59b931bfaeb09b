"""Runs whose figures must not depend on how a batch is cut or laid out, or on the devices.

As a program it makes the runs of a mesh, in a process of its own with eight devices.
"""

import sys
from pathlib import Path

import jax
import numpy as np
import tiny_loop as loops
from rlax_maxtext.canary import CanaryForward

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
GROUPS, LENGTH, VOCAB = 4, loops.LENGTH, loops.VOCAB
LENGTHS = (1, 2, 5, 11)  # completion tokens of a group's samples
MESH = ("ici_fsdp_parallelism=4", "ici_tensor_parallelism=2")
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


def canary_of(loop, tokens):
    return np.asarray(CanaryForward(tokens)(loop, fresh_weights(loop)).logprobs)


def three_steps(directory, *argv):
    """Figures of ``descend``, and the canary of the first weights."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, 9).astype(np.int32)
    return descend(directory, *argv, look=lambda loop: {"canary": canary_of(loop, tokens)})


HEADS = {
    "tied": (
        "normalize_embedding_logits=true",
        "final_logits_soft_cap=2.0",
        "logits_dot_in_fp32=true",
    ),
    "untied": ("logits_via_embedding=false", "logits_dot_in_fp32=true"),
}
SGD = ("opt_type=sgd", "learning_rate=1.0", "gradient_clipping_threshold=0.0")
FIGURES = ("learning/loss", "learning/grad_norm", "logprob_sum", "entropy")


def entropy_too(scores, data):
    """A policy gradient with an entropy bonus: both results carry a gradient."""
    loss_sum, weight, metrics = loops.policy_gradient(scores, data)
    entropy = (scores.entropy_bt * data["rl_mask"]).sum()
    return loss_sum - 0.5 * entropy, weight, metrics | {"entropy": entropy}


def one_step(directory, *argv):
    """Figures of one step, its gradients (as weights after SGD with a rate of 1) and the canary."""
    config = loops.configure(directory, *SGD, *argv, steps=1)
    # MaxText's default generator draws other weights on another mesh.
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    found = {}

    def on_start(loop):
        found["canary"] = canary_of(loop, loops.batch(1)["inputs"][0])

    def on_step_end(loop, metrics):
        arrays = fresh_weights(loop) | {name: metrics[name] for name in FIGURES}
        found.update({name: np.asarray(value) for name, value in arrays.items()})
        return False

    events = Events(loops.batch, on_step_end, on_start)
    run_train_loop(config, events, arrays=loops.ARRAYS, objective=entropy_too)
    return found


def of_the_mesh(directory):
    """Name -> figures, each of as many rows as the run on one device has."""
    yield "three_steps", three_steps(directory / "three_steps", "per_device_batch_size=2", *MESH)
    for head, argv in HEADS.items():
        tiled = ("per_device_batch_size=1", "num_vocab_tiling=4", *MESH, *argv)
        yield head, one_step(directory / head, *tiled)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for name, figures in of_the_mesh(out):
        np.savez(out / f"{name}.npz", **figures)
