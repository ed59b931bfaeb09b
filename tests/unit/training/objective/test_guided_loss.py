"""The term of a demonstration in a group, with numbers worked out by hand."""

import numpy as np
import pytest
from objective_harness import data_of, differentiated, modes, slots_of

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.training.objective.batches import GUIDED
from rlax_plugin.training.objective.diagnostics import summarise

# The first row is sampled, at the policy's own weights; the second one is a demonstration.
LOGPROBS = np.log([[0.5, 0.2], [0.25, 0.01]]).astype(np.float32)
ADVANTAGES = np.array([[-0.5, -0.5], [1.5, 1.5]])
GAMMA = 0.1


def data(**arrays):
    behaviour = np.where([[1, 1], [0, 0]], LOGPROBS, 0.0).astype(np.float32)
    found = data_of(np.ones((2, 2)), ADVANTAGES, behaviour)
    return found | {GUIDED: np.array([[0, 0], [1, 1]], np.int32)} | arrays


@modes
@pytest.mark.parametrize(
    "objective",
    [
        {"preset": "dapo"},
        # What would reject, cap or penalise tokens whose log-probs are not the policy's.
        {
            "preset": "grpo",
            "aggregation": {"name": "token_mean", "count": "kept"},
            "old_policy": "proximal",
            "corrections": [
                {"name": "truncated_importance_sampling"},
                {"name": "sequence_mask", "low": 0.99, "high": 1.01},
                {"name": "veto"},
            ],
            "kl": {"coefficient": 0.04, "placement": "loss"},
        },
        {"preset": "gspo", "aggregation": {"name": "token_mean"}},
        {"preset": "cispo"},
        {"preset": "aipo", "aggregation": {"name": "token_mean"}},
    ],
    ids=["dapo", "corrected", "gspo", "cispo", "aipo"],
)
def test_its_term_is_the_shaped_probability_without_any_ratio(mode, objective) -> None:
    slots = slots_of(**objective, guidance={"gamma": GAMMA})
    found = mode(differentiated(slots))(LOGPROBS, data(rl_reference_logprobs=LOGPROBS))
    assert float(found.weight) == 4
    # p / (p + 0.1): 0.25 / 0.35 and 0.01 / 0.11; its derivative by log p: 0.1 p / (p + 0.1)^2.
    shaped = 0.714286 + 0.090909
    sampled = LOGPROBS[0].sum() if objective["preset"] in ("cispo", "aipo") else 2.0
    assert float(found.loss_sum) == pytest.approx(0.5 * sampled - 1.5 * shaped, rel=1e-5)
    grad = np.asarray(found.grad_bt)
    scale = grad[0, 0] / 0.5  # the harness may divide by the weight
    np.testing.assert_allclose(grad[1] / scale, -1.5 * np.array([0.204082, 0.082645]), rtol=1e-4)


def test_only_the_policys_own_tokens_are_measured() -> None:
    slots = slots_of("dapo", guidance={"gamma": GAMMA})
    report = summarise(differentiated(slots)(LOGPROBS, data()).metrics)
    assert report["objective/tokens"] == 2 and report["objective/sequences"] == 1
    assert report["objective/advantage"] == -0.5
    assert report["objective/kl_k3"] == pytest.approx(0, abs=1e-7)
    assert report["logprob_gap/tokens"] == 2 and report["logprob_gap/max"] == 1e-8


def test_without_guidance_the_array_is_not_read() -> None:
    slots = slots_of("dapo")
    plain = data()
    guided = differentiated(slots)(LOGPROBS, plain)
    del plain[GUIDED]
    assert float(guided.loss_sum) == float(differentiated(slots)(LOGPROBS, plain).loss_sum)


@pytest.mark.parametrize(
    "kl",
    [
        {"coefficient": 0.1, "placement": "reward"},
        {"coefficient": 0.1, "adaptive": {"target": 0.1}},
    ],
)
def test_it_is_refused_with_a_kl_that_needs_log_probs_of_samples(kl) -> None:
    with pytest.raises(ConfigError, match=r"must be null with rlax\.objective\.kl\.placement"):
        slots_of("grpo", kl=kl, guidance={})
