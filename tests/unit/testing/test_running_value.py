"""Signal ``running_value``, by hand; and in trainer ``bigram``, over stops."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlax_plugin.api import RunFiles, TrainingError
from rlax_plugin.base.files.packing import unpack
from rlax_plugin.testing import FakeTrainerPort, make_arrays, make_batch, make_group, make_prompt
from rlax_plugin.testing.running_value import RunningValue
from rlax_plugin.testing.trainer import BigramConfig, BigramTrainer
from rlax_plugin.training.objective.batches import build_arrays
from rlax_plugin.training.objective.terms import reported

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


def batch_of(step):
    """Three prompts in turn, two at a time; all but one reward in three differ."""
    rng = np.random.default_rng(step)
    groups = [
        make_group(
            tuple(rng.integers(0, 2, 3).astype(float)),
            id=2 * step + place,
            prompt=make_prompt(f"{(step + place) % 3}"),
            version=step - 1,
        )
        for place in (0, 1)
    ]
    return make_arrays(make_batch(step, groups))


def train(run, steps, *, stop_after=None, running_value=0.5):
    port = FakeTrainerPort(batch_of, stop_after=stop_after)
    config = BigramConfig(running_value=running_value, checkpoint_every=4)
    BigramTrainer(config, RunFiles(run), steps=steps, seed=3, temperature=0.8).run(port)
    port.close()
    return port


def state(run: Path, step: int) -> dict[str, list]:
    found = unpack((run / f"signals/{step:08d}/running_value/state.npz").read_bytes())
    return {name: array.tolist() for name, array in found.items()}


def test_a_continued_run_has_the_values_and_weights_of_an_undisturbed_one(tmp_path):
    whole, parts, plain = tmp_path / "whole", tmp_path / "parts", tmp_path / "plain"
    expected = train(whole, 8).published[8]
    train(parts, 8, stop_after=3)
    train(parts, 8, stop_after=6)
    found = train(parts, 8).published[8]
    for name, array in expected.items():
        assert array.tobytes() == found[name].tobytes(), name
    assert state(whole, 8) == state(parts, 8) and len(state(whole, 8)["values"]) == 3
    others = train(plain, 8, running_value=0.0).published[8]
    assert any((others[name] != array).any() for name, array in expected.items())
    assert not (plain / "signals").exists()

    (parts / "signals/00000008/running_value/state.npz").unlink()
    with pytest.raises(TrainingError, match=r"signals/00000008/running_value/state\.npz is miss"):
        train(parts, 9)


def test_the_advantage_is_the_reward_less_the_value(tmp_path):
    port = train(tmp_path, 2)
    signal = RunningValue(0.5)
    for step in (1, 2):
        batch = batch_of(step)
        values_bt = signal.complete(None, step, batch)["rl_values"]
        trained_bt = batch["rl_mask"] > 0
        advantages_n = (batch["rl_rewards"] - values_bt)[trained_bt]
        assert port.metrics[step]["objective/advantage"] == pytest.approx(advantages_n.sum())
        told = reported(port.metrics[step])["objective/running_value"]
        assert told == pytest.approx(values_bt[trained_bt].mean())
        signal.learn(None, step, batch)
    assert reported(port.metrics[1])["objective/running_value"] == 0 < values_bt.max()
