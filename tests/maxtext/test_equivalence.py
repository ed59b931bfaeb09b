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
from equivalent_runs import (
    GROUPS,
    HEADS,
    LENGTH,
    LENGTHS,
    batch_of,
    descend,
    groups_of,
    one_step,
)

from maxtext_overrides.trainer.model_outputs import target_logprobs_of
from rlax_plugin.training.objective import batches, placing


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


def sample_logprobs(logprobs_bt, data, sequences_per_row):
    """The completions' log-probs, sample by sample in the order of the groups."""
    sizes = batches.sizes(groups_of(1))
    places = placing.place(sizes, len(logprobs_bt), LENGTH, sequences_per_row)
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


def assert_alike(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.ci
def test_a_whole_model_trains_alike_in_tiles(tmp_path, dense):
    assert_alike(one_step(tmp_path, *HEADS["tied"], "num_vocab_tiling=8"), dense["tied"])


@pytest.mark.ci
def test_tiles_and_micro_batches(tmp_path, dense):
    argv = ("num_vocab_tiling=4", "gradient_accumulation_steps=2", "per_device_batch_size=4")
    assert_alike(one_step(tmp_path, *HEADS["untied"], *argv), dense["untied"])


@pytest.mark.ci
@pytest.mark.parametrize("head", HEADS)
def test_a_mesh_of_eight_tiles_as_one_device_computes_at_once(head, dense, of_eight_devices):
    assert_alike(of_eight_devices[head], dense[head])
