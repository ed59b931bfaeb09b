"""Several updates per RL step: epochs over a batch, and mini-batches of it."""

import itertools

import numpy as np
import pytest
import tiny_loop as loops

from maxtext_overrides.trainer.updates import StepMetrics, Updates
from rlax_plugin.base.errors import TrainingError

FOUR = ("rlax.objective.epochs=2", "rlax.objective.mini_batches=2", "per_device_batch_size=4")
SAVING = {"enable_checkpointing": True, "async_checkpointing": True}


def numbered(rows, used):
    """A batch whose inputs are their row's number; of row r, r + 1 tokens train if r < used."""
    row_b = np.arange(rows)
    mask_bt = (np.arange(rows) <= row_b[:, None]) & (row_b < used)[:, None]
    return {
        "inputs": np.repeat(row_b[:, None], rows, axis=1).astype(np.int32),
        "rl_mask": mask_bt.astype(np.int32),
    }


def rows_of(batches):
    return [batch["inputs"][:, 0].tolist() for batch in batches]


def test_every_epoch_deals_out_every_row_once_and_anew():
    batch = numbered(12, 12)
    found = rows_of(Updates(epochs=3, mini_batches=4, seed=7).of(5, batch))
    assert len(found) == 12 and all(len(rows) == 3 for rows in found)
    epochs = [found[:4], found[4:8], found[8:]]
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == list(range(12))
        # Each mini-batch has one of the four longest rows, one of the next four, one of the rest.
        assert all([row // 4 for row in rows] == [2, 1, 0] for rows in epoch)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert found == rows_of(Updates(3, 4, 7).of(5, batch))
    for other in (Updates(3, 4, 8).of(5, batch), Updates(3, 4, 7).of(6, batch)):
        assert found != rows_of(other)


def test_every_mini_batch_has_tokens_as_long_as_there_are_rows_with_tokens():
    batch = numbered(16, 4)  # padding rows, as a budget of tokens leaves them
    for step in range(50):
        for part in Updates(mini_batches=4).of(step, batch):
            assert part["rl_mask"].any(axis=1).sum() == 1
            np.testing.assert_array_equal(
                part["rl_mask"], batch["rl_mask"][part["inputs"][:, 0]]
            )  # all arrays are cut alike


def test_a_single_mini_batch_is_the_batch_as_it_is():
    batch = numbered(4, 4)
    for part in Updates(epochs=2).of(1, batch):
        assert all(part[name] is batch[name] for name in batch)


def test_a_mini_batch_without_tokens_is_reported_once(caplog):
    batch = numbered(4, 4)
    batch["rl_mask"] = np.array([[1] * 4, [0] * 4, [0] * 4, [0] * 4])
    for mini_batches, warnings in ((1, 0), (2, 1)):
        caplog.clear()
        list(Updates(epochs=3, mini_batches=mini_batches).of(1, batch))
        assert len(caplog.records) == warnings
    assert "step 1: a mini-batch has no token to train" in caplog.text


def test_metrics_of_the_updates_are_means_of_scalars_and_sums_of_sums():
    metrics = StepMetrics()
    for value in (1.0, 2.0, 6.0):
        sums = {"objective/ratio": np.float32(value), "gap_hist": np.array([value, 1.0])}
        metrics.add({"learning/loss": np.float32(value)}, sums)
    found = metrics.take()
    assert found["learning/loss"] == 3.0 and found["objective/ratio"] == 9.0
    # Before the first update alone do trainer and sampler hold equal weights.
    np.testing.assert_array_equal(found["gap_hist"], [1.0, 1.0])
    only = {"learning/loss": object()}
    metrics.add(only, {})
    assert metrics.take() == only  # untouched, and nothing is left of the step before


def one_update_each(directory):
    """The eight updates of two steps, fed to the loop as eight steps."""
    updates = Updates(epochs=2, mini_batches=2)
    parts = [part for step in (1, 2) for part in updates.of(step, loops.batch(step))]
    recorder = loops.Recorder(batches=lambda step: parts[step - 1])
    return loops.train(directory, recorder=recorder, per_device_batch_size=4, steps=8)


def labels(tmp_path):
    checkpoints = (tmp_path / "tiny" / "checkpoints").iterdir()
    return sorted(int(path.name) for path in checkpoints if path.name.isdigit())


def test_four_updates_make_one_version_and_a_resumed_run_makes_the_same(tmp_path):
    stopped = loops.Recorder(stop_after=1)
    first = loops.train(tmp_path, *FOUR, recorder=stopped, steps=8, **SAVING)
    assert first.calls == [("start", 0), ("batch", 1), ("end", 1), ("checkpoint", 1)]
    assert labels(tmp_path) == [3]
    # A checkpoint falls due at MaxText's step 6, and is saved once, when step 2 ends.
    second = loops.train(tmp_path, *FOUR, steps=8, checkpoint_period=6, **SAVING)
    assert second.calls == [("start", 1), ("batch", 2), ("checkpoint", 2), ("end", 2)]
    assert labels(tmp_path) == [3, 7] and second.loop.completed == 2

    reference = one_update_each(tmp_path / "reference")
    for found, step in ((first, 1), (second, 1), (second, 2)):
        for name, value in reference.weights[4 * step].items():
            np.testing.assert_array_equal(found.weights[step][name], value, err_msg=name)
    for found, step in ((first, 1), (second, 2)):
        updates = [reference.metrics[4 * step - i] for i in range(4)]
        assert found.metrics[step]["tokens"] == sum(u["tokens"] for u in updates) == 2 * 36
        for name, mean in (("learning/loss", np.mean), ("logprob_sum", np.sum)):
            expected = mean([u[name] for u in updates])
            assert found.metrics[step][name] == pytest.approx(expected, rel=1e-6), name

    with pytest.raises(TrainingError, match="8 updates of the checkpoint are not a multiple of 3"):
        loops.train(tmp_path, "rlax.objective.epochs=3", steps=9, **SAVING)
