"""The toy policy on samples of two temperatures: exact log-probs and ratios."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlax_plugin.base.types import SamplingParams
from rlax_plugin.testing import make_batch, make_episode, make_group, make_sampled, policy
from rlax_plugin.testing.model import BigramView
from rlax_plugin.testing.trainer import _metric_sums
from rlax_plugin.training.objective.batches import build_arrays
from rlax_plugin.training.objective.diagnostics import summarise

WEIGHTS = policy.initial_weights(0)
LENGTH = 12


def group(number, temperature):
    """Two samples that the policy generates at a temperature."""
    made = make_group(id=number, temperature=temperature)
    sampling, episodes = SamplingParams(temperature), []
    for episode in made.episodes:
        (turn,) = episode.trajectories[0].turns
        previous, tokens, logprobs = int(turn.given[-1]), [], []
        for place in range(6):
            logprobs_v = policy.log_probs(WEIGHTS, np.array([previous]), temperature)[0]
            chance = policy.uniform(turn.sampled.seed, place)
            previous, logprob, _ = policy.choose(logprobs_v, chance, sampling)
            tokens.append(previous)
            logprobs.append(logprob)
        sampled = make_sampled(tokens=tokens, logprobs=np.array(logprobs, np.float32))
        episodes.append(make_episode(sampled, index=episode.index, prompt=made.prompt))
    return replace(made, episodes=tuple(episodes))


def arrays_of(*temperatures):
    groups = [group(number, one) for number, one in enumerate(temperatures)]
    batch = make_batch(1, groups)
    return build_arrays(batch, rows=2 * len(groups), length=LENGTH, temperatures=True)


def metrics_of(arrays, temperature):
    _, logprobs_n = policy.reinforce(WEIGHTS, arrays, temperature)
    return summarise(_metric_sums(arrays, logprobs_n))


def test_the_gap_with_two_temperatures_is_as_small_as_with_one() -> None:
    two, one = arrays_of(1.5, 0.5), arrays_of(1.5, 1.5)
    found = metrics_of(two, two["rl_temperature"])
    assert found["logprob_gap/p95"] <= metrics_of(one, 1.5)["logprob_gap/p95"] < 1e-6
    assert found["objective/effective_sample_size"] == pytest.approx(1)
    # One temperature for all would be wrong for half of them.
    assert metrics_of(two, 1.5)["logprob_gap/p95"] > 0.1


def test_signals_see_the_log_probs_of_each_tokens_temperature() -> None:
    arrays = arrays_of(1.5, 0.5)
    found = BigramView(WEIGHTS, 0, None).forward(arrays, "logprobs")["logprobs"]
    trained_bt = arrays["rl_mask"] > 0
    sampled_n = arrays["rl_behaviour_logprobs"][trained_bt]
    np.testing.assert_allclose(found[trained_bt], sampled_n, atol=1e-6)
