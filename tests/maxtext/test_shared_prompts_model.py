"""Samples that share their prompt in a row get the log-probs and gradients of plain rows."""

import jax
import numpy as np
import pytest
from equivalent_runs import GROUPS, LENGTHS, batch_of, descend

from maxtext_overrides.trainer.model_outputs import target_logprobs_of
from rlax_plugin.training.objective.shared_prompts import ANSWER


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sample in each of 16 rows."""
    return descend(tmp_path_factory.mktemp("whole"), "per_device_batch_size=16")


def assert_same(found, expected):
    for name, value in expected.items():
        assert np.all(np.isfinite(value)) and np.linalg.norm(value) > 1e-3, name
        distance = np.linalg.norm(found[name] - value) / np.linalg.norm(value)
        assert distance < 2e-6, (name, distance)


def test_shared_prompts_give_the_gradient_of_a_sample_per_row(tmp_path, whole):
    """One row holds the four answers of a group; another layout has two rows a group."""
    logprobs = []
    look = keep_logprobs(logprobs, [(16, 1), (4, 4, True), (8, 2, True)])
    found = descend(
        tmp_path, "per_device_batch_size=4", sequences_per_row=4, shared=True, look=look
    )
    alone, four, two = logprobs
    assert alone.size == GROUPS * sum(LENGTHS) and alone.std() > 0.1
    np.testing.assert_allclose(four, alone, rtol=0, atol=1e-5)
    np.testing.assert_allclose(two, alone, rtol=0, atol=1e-5)
    assert_same(found, whole)


def test_micro_batches_with_empty_rows_and_tiles_of_the_vocabulary(tmp_path, whole):
    argv = ("per_device_batch_size=4", "gradient_accumulation_steps=3", "num_vocab_tiling=4")
    data = batch_of(1, 12, 2, True)
    assert (~data["rl_mask"].any(axis=1)).sum() == 4  # rows of padding alone
    found = descend(tmp_path, *argv, sequences_per_row=2, shared=True)
    assert_same(found, whole)


def test_the_mask_matters(tmp_path):
    """Without it an answer sees those before it, and the log-probs differ by far more."""
    logprobs = []

    def look(loop):
        forward = jax.jit(lambda state, data: target_logprobs_of(loop.graph, state, data, 1.0))
        data = batch_of(1, 4, 4, True)
        blind = data | {"inputs_segmentation": data["inputs_segmentation"] % ANSWER}
        for given in (data, blind):
            with loop.shardings():
                logprobs.append(of_samples(forward(loop.model_state, given), data))
        raise StopIteration

    with pytest.raises(StopIteration):
        descend(tmp_path, "per_device_batch_size=4", sequences_per_row=4, shared=True, look=look)
    assert np.abs(logprobs[0] - logprobs[1]).max() > 1e-2


def test_log_probs_of_another_family(tmp_path):
    logprobs = []

    def look(loop):
        keep_logprobs(logprobs, [(16, 1), (4, 4, True)])(loop)
        raise StopIteration

    argv = ("decoder_block=qwen3", "use_qk_norm=true", "per_device_batch_size=4")
    with pytest.raises(StopIteration):
        descend(tmp_path, *argv, sequences_per_row=4, shared=True, look=look)
    assert logprobs[0].std() > 0.1
    np.testing.assert_allclose(logprobs[1], logprobs[0], rtol=0, atol=1e-5)
