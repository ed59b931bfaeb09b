"""Signal ``running_value``, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlax_plugin.testing import make_batch, make_group, make_prompt
from rlax_plugin.testing.running_value import RunningValue
from rlax_plugin.training.objective.batches import build_arrays

A, B = make_prompt("12"), make_prompt("34")


def group(number, prompt, rewards):
    return make_group(rewards, id=number, prompt=prompt)


def laid_out(groups, sequences_per_row):
    samples = sum(len(g.episodes) for g in groups)
    batch = make_batch(3, groups)
    return build_arrays(batch, rows=samples, length=20, sequences_per_row=sequences_per_row)


def saved(signal):
    """The value of each prompt, in the order in which they came."""
    state = {}
    signal.save(3, SimpleNamespace(put=state.update))
    return state["values"].tolist()


@pytest.mark.parametrize("sequences_per_row", [1, 3])
def test_values_are_those_before_the_batch_and_follow_its_groups_in_order(sequences_per_row):
    signal = RunningValue(0.25)

    def values(*groups):
        """The value at each sample of a batch, which is then learnt from."""
        batch = laid_out(groups, sequences_per_row)
        found = signal.complete(None, 3, batch)["rl_values"]
        assert not found[batch["rl_group"] == 0].any()
        trained_n = found[batch["rl_mask"] > 0]
        assert signal.metrics == {"objective/running_value": (trained_n.sum(), trained_n.size)}
        signal.learn(None, 3, batch)
        return [np.unique(found[batch["rl_group"] == n]).tolist() for n in range(1, 5)]

    # A sample that could not be scored says nothing.
    first = values(group(0, A, (1.0, 0.0, None)), group(1, B, (1.0, 1.0)))
    assert first == [[0.0], [0.0], [], []]
    assert saved(signal) == [0.5, 1.0]
    # A falls by a quarter of 0.5, to 0.375, then rises by a quarter of 0.625.
    second = values(group(2, A, (0.0, 0.0)), group(3, A, (1.0, 1.0)), group(4, B, (0.0, 1.0)))
    assert second == [[0.5], [0.5], [1.0], []]
    assert saved(signal) == [0.53125, 0.875]
