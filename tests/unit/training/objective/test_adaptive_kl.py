"""The adaptive KL coefficient: its rule by hand, and a policy that settles at the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from objective_harness import slots_of
from rlax_maxtext.policies import ReferencePolicy

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config import KL
from rlax_plugin.training.objective.adaptive_kl import AdaptiveCoefficient
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.batches import ARRAYS, HOST_ARRAYS
from rlax_plugin.training.objective.ratios import kl_estimate
from rlax_plugin.training.objective.terms import reported
from rlax_plugin.training.signals.chain import SignalChain
from rlax_plugin.training.signals.model_view import ModelView, Part


def kl(**adaptive):
    return KL(coefficient=0.5, estimator="k1", adaptive={"target": 2.0, "horizon": 8, **adaptive})


def batch(differences, mask=None):
    """Two samples of two tokens, whose log-probs lie so far above the reference's."""
    differences = np.array(differences, np.float32)
    mask = np.ones((2, 2), np.int32) if mask is None else np.array(mask, np.int32)
    episode = np.array([[1, 1], [2, 2]], np.int32) * mask
    behaviour = -2 + differences
    return {"rl_mask": mask, "rl_episode": episode, "rl_behaviour_logprobs": behaviour}


REFERENCE = np.full((2, 2), -2.0, np.float32)


@pytest.mark.parametrize(
    ("options", "differences", "measured", "factor"),
    [
        # 2 of 8 samples: the factor is 1 + error / 4. KL per sample: (1.0 + 3.2) / 2 = 2.1.
        ({}, [[0.5, 0.5], [1.2, 2.0]], 1.05, 1 + 0.05 / 4),
        ({}, [[0.5, 0.5], [1.0, 1.6]], 0.9, 1 - 0.1 / 4),
        ({}, [[9.0, 9.0], [9.0, 9.0]], 9.0, 1 + 0.2 / 4),  # clipped
        ({}, [[-1.0, 0.0], [0.0, 0.0]], -0.25, 1 - 0.2 / 4),  # k1 may be negative
        ({"per": "token"}, [[2.0, 2.0], [2.0, 2.4]], 1.05, 1 + 0.05 / 4),
        ({"horizon": 1}, [[0.0, 0.0], [0.0, 0.0]], 0.0, 0.6),
    ],
)
def test_the_rule_by_hand(options, differences, measured, factor) -> None:
    coefficient = AdaptiveCoefficient(kl(**options))
    coefficient.observe(batch(differences), REFERENCE)
    assert coefficient.measured == pytest.approx(measured, rel=1e-6)
    assert coefficient.coefficient == pytest.approx(0.5 * factor, rel=1e-6)


def test_only_tokens_that_train_are_measured() -> None:
    coefficient = AdaptiveCoefficient(kl())
    with_nan = batch([[2.0, np.nan], [np.nan, np.nan]], mask=[[1, 0], [0, 0]])
    coefficient.observe(with_nan, REFERENCE)
    assert (coefficient.measured, coefficient.coefficient) == (1.0, 0.5)
    coefficient.observe(batch([[9.0, 9.0], [9.0, 9.0]], mask=np.zeros((2, 2))), REFERENCE)
    assert coefficient.coefficient == 0.5  # no token: as before


# A policy that chooses between two answers of one token, with the log-odds x of the first one. The
# reference has the log-odds 0, and the first answer is paid 1. So the expected reward less beta
# times the KL is largest at x = 1 / beta, where the KL is log 2 - H(sigmoid(x)).
SAMPLES, RATE, TARGET = 500, 4.0, 0.1


class TwoAnswers(ModelView):
    outputs = {"logprobs": ArraySpec(np.dtype(np.float32))}  # noqa: RUF012
    resumable = False

    def __init__(self, log_odds=0.0):
        self.log_odds = log_odds

    def keep(self, *, offload=False):
        return self.log_odds

    def load(self, path, key, *, offload=False):
        return 0.0

    def log_probs(self, first, log_odds):
        return -np.logaddexp(0, np.where(first, -log_odds, log_odds))

    def _parts(self, batch, names, weights):
        found = self.log_probs(batch["targets"] == 1, self.log_odds if weights is None else weights)
        yield Part(slice(0, len(found)), batch, {"logprobs": found.astype(np.float32)})


def sampled(model):
    """A batch in which each answer is as frequent as it is probable."""
    specs = ARRAYS | HOST_ARRAYS
    arrays = {name: spec.zeros(SAMPLES, 1) for name, spec in specs.items()}
    first = np.arange(SAMPLES)[:, None] < round(SAMPLES / (1 + np.exp(-model.log_odds)))
    arrays["targets"][:] = first
    for name in ("rl_mask", "rl_group", "rl_place"):
        arrays[name][:] = 1
    arrays["rl_episode"][:, 0] = np.arange(1, SAMPLES + 1)
    arrays["rl_rewards"][:] = first
    arrays["rl_behaviour_logprobs"][:] = model.log_probs(first, model.log_odds)
    return arrays


def chain_of(directory, estimator="k1", **kl):
    adaptive = {"target": TARGET, "horizon": 10 * SAMPLES}
    kl = {"coefficient": 0.5, "placement": "reward", "adaptive": adaptive, **kl}
    slots = slots_of("reinforce", kl={"estimator": estimator, **kl})
    files = RunFiles(str(directory))
    signals = {"reference": ReferencePolicy(slots, "", files, offload=False)}
    advantages = lambda outcomes: outcomes.totals_n  # noqa: E731
    return SignalChain(signals, files, advantages, checkpoints=lambda: ())


def trained(chain, model, steps):
    """Each (coefficient, KL in units of its target) of some steps of exact gradient ascent."""
    found = []
    for step in steps:
        completed = chain.complete(model, step, sampled(model))
        metrics = reported(chain.metrics)
        names = "objective/kl_coefficient", "objective/kl_of_target"
        found.append(tuple(metrics[name] for name in names))
        probability = 1 / (1 + np.exp(-model.log_odds))
        # d log pi / d x of the first answer is 1 - p, of the second one - p.
        slope = np.where(completed["targets"] == 1, 1 - probability, -probability)
        model.log_odds += RATE * float((completed["rl_advantages"] * slope).mean())
    return found


def test_the_kl_settles_at_its_target(tmp_path: Path) -> None:
    chain, model = chain_of(tmp_path), TwoAnswers()
    chain.start(model, 0)
    steps = trained(chain, model, range(1, 201))
    assert steps[0] == (0.5, 0.0)
    kls = [kl for _, kl in steps]
    assert max(kls[:60]) > 1.5  # 0.5 alone would keep it at 3 times the target
    assert kls[-60:] == pytest.approx([1.0] * 60, abs=0.02)
    # log 2 - H(p) = 0.1 at p = 0.7198, where beta = 1 / log(p / (1 - p)) = 1.06.
    p = 0.7198
    assert np.log(2) + p * np.log(p) + (1 - p) * np.log(1 - p) == pytest.approx(TARGET, rel=1e-3)
    assert steps[-1][0] == pytest.approx(1 / np.log(p / (1 - p)), rel=0.02)


def test_a_resumed_run_has_the_same_coefficients_bit_for_bit(tmp_path: Path) -> None:
    chain, model = chain_of(tmp_path), TwoAnswers()
    chain.start(model, 0)
    trained(chain, model, range(1, 6))
    chain.save(5)
    saved = model.log_odds
    undisturbed = trained(chain, model, range(6, 10))
    for _ in range(2):  # killed, and killed again before the next checkpoint
        again, model = chain_of(tmp_path), TwoAnswers(saved)
        (tmp_path / "reference").mkdir(exist_ok=True)  # stored in the first start of a real run
        model.version = 5
        again.start(model, 5)
        assert trained(again, model, range(6, 10)) == undisturbed
    assert len({coefficient for coefficient, _ in undisturbed}) == 4
    (tmp_path / "signals/00000005/reference/state.npz").unlink()
    with pytest.raises(TrainingError, match="is missing"):
        chain_of(tmp_path).start(model, 5)


def test_in_the_loss_the_coefficient_is_an_array_of_the_batch(tmp_path: Path) -> None:
    chain, model = chain_of(tmp_path, "k3", placement="loss"), TwoAnswers(1.0)
    assert set(chain.device_arrays) == {"rl_reference_logprobs", "rl_kl_coefficient"}
    chain.start(model, 0)
    model.log_odds = 2.0
    first = chain.complete(model, 1, batch := sampled(model))
    assert np.unique(first["rl_kl_coefficient"]).tolist() == [0.5]
    reference_bt = model.log_probs(batch["targets"] == 1, 1.0)
    k3 = kl_estimate("k3", batch["rl_behaviour_logprobs"] - reference_bt, np).mean()
    factor = 1 + np.clip(k3 / TARGET - 1, -0.2, 0.2) / 10
    second = chain.complete(model, 2, sampled(model))
    assert np.unique(second["rl_kl_coefficient"]) == pytest.approx([0.5 * factor], rel=1e-6)
