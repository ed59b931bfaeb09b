"""The gradient of one batch is the same however the batch is cut, laid out or spread.

A run takes three steps of plain gradient descent, each with another objective: one that averages
over tokens, one over sequences, and one with a KL to a reference policy. One compiled train step
holds all three, because compiling is most of what this costs; a batch says which one it is for.

Runs that score tokens by tiles of the vocabulary take one step each, for each kind of output layer.
"""

import os
import subprocess
import sys

import equivalent_runs
import jax
import numpy as np
import pytest
from equivalent_runs import GATHERED, GROUPS, HEADS, LENGTH, LENGTHS, batch_of, descend, one_step
from tiny_loop import configure

from maxtext_overrides.kept_positions import logits_per_row
from maxtext_overrides.trainer.model_outputs import target_logprobs_of


def distance(found, expected):
    """Of two vectors or numbers, relative to the second."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def assert_same(found, expected, tolerance):
    for name, value in expected.items():
        assert np.all(np.isfinite(value)) and np.linalg.norm(value) > 1e-3, name
        assert distance(found[name], value) < tolerance, name


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """One micro-batch of 16 rows, a sample in each."""
    return equivalent_runs.three_steps(tmp_path_factory.mktemp("whole"), "per_device_batch_size=16")


@pytest.fixture(scope="module")
def whole(one_device):
    return {name: figure for name, figure in one_device.items() if name != "canary"}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return {name: one_step(tmp_path_factory.mktemp("dense"), *argv) for name, argv in HEADS.items()}


@pytest.fixture(scope="module")
def of_eight_devices(tmp_path_factory):
    """Name of a run -> its figures on a mesh (fsdp x tensor) of eight devices."""
    directory = tmp_path_factory.mktemp("mesh")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, equivalent_runs.__file__, str(directory)]
    subprocess.run(command, env=environment, check=True, timeout=240)
    return {path.stem: dict(np.load(path)) for path in directory.glob("*.npz")}


@pytest.mark.ci
def test_a_mesh_of_eight_gives_one_devices_figures(one_device, of_eight_devices):
    mesh = of_eight_devices["three_steps"]
    assert set(mesh) == set(one_device)
    np.testing.assert_allclose(mesh["canary"], one_device["canary"], rtol=0, atol=1e-5)
    assert_same(mesh, one_device, 3e-6)


def test_four_uneven_micro_batches_give_the_gradient_of_one(tmp_path, whole):
    data = batch_of(1, 16, 1)
    # MaxText deals rows out: micro-batch i gets sample i of every group.
    assert [data["rl_mask"][i::4].sum() for i in range(4)] == [4, 8, 20, 44]
    argv = ("per_device_batch_size=4", "gradient_accumulation_steps=4")
    assert_same(descend(tmp_path, *argv), whole, 2e-6)


def of_samples(logprobs_bt, data):
    """The log-probs of the trained tokens, sample by sample in the order of the groups."""
    rows, t = np.nonzero(data["rl_mask"])
    order = np.lexsort((t, data["rl_episode"][rows, t]))
    return np.asarray(logprobs_bt)[rows[order], t[order]]


def keep_logprobs(found, layouts):
    """Returns a ``look`` that computes log-probs of the first batch in several layouts."""

    def look(loop):
        forward = jax.jit(lambda state, data: target_logprobs_of(loop.graph, state, data, 1.0))
        for layout in layouts:
            data = batch_of(1, *layout)
            with loop.shardings():
                found.append(of_samples(forward(loop.model_state, data), data))
        return {}

    return look


def assert_same_logprobs(logprobs):
    alone, *others = logprobs
    assert alone.size == GROUPS * sum(LENGTHS) and alone.std() > 0.1
    for other in others:
        np.testing.assert_allclose(other, alone, rtol=0, atol=1e-5)


def test_packed_rows_give_the_gradient_of_a_sample_per_row(tmp_path, whole):
    logprobs = []
    look = keep_logprobs(logprobs, [(16, 1), (8, 4)])
    found = descend(tmp_path, "per_device_batch_size=8", sequences_per_row=4, look=look)
    assert_same_logprobs(logprobs)
    assert_same(found, whole, 2e-6)


def test_shared_prompts_give_the_gradient_of_a_sample_per_row(tmp_path, whole):
    """One row holds the four answers of a group; another layout has two rows a group."""
    logprobs = []
    look = keep_logprobs(logprobs, [(16, 1), (4, 4, True), (8, 2, True)])
    argv = ("per_device_batch_size=4",)
    found = descend(tmp_path, *argv, sequences_per_row=4, shared=True, look=look)
    assert_same_logprobs(logprobs)
    assert_same(found, whole, 2e-6)


def test_micro_batches_with_empty_rows_and_tiles_of_the_vocabulary(tmp_path, whole):
    argv = ("per_device_batch_size=4", "gradient_accumulation_steps=3", "num_vocab_tiling=4")
    data = batch_of(1, 12, 2, True)
    assert (~data["rl_mask"].any(axis=1)).sum() == 4  # rows of padding alone
    found = descend(tmp_path, *argv, sequences_per_row=2, shared=True)
    assert_same(found, whole, 2e-6)


def assert_alike(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.ci
@pytest.mark.parametrize("head", HEADS)
def test_a_mesh_of_eight_tiles_as_one_device_computes_at_once(head, dense, of_eight_devices):
    assert_alike(of_eight_devices[head], dense[head])


@pytest.mark.ci
def test_a_mesh_of_eight_gathers_positions_as_one_device_computes_all(tmp_path, of_eight_devices):
    assert logits_per_row(configure(tmp_path, *GATHERED)) == LENGTH // 2
    all_of_a_row = f"rlax.rollouts.max_new_tokens={LENGTH}"
    assert logits_per_row(configure(tmp_path, *GATHERED, all_of_a_row)) is None
    assert_alike(of_eight_devices["gathered"], one_step(tmp_path, *GATHERED, all_of_a_row))
