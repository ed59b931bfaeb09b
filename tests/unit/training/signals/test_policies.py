"""The reference and pi_old on the toy policy: whose weights score which token, over restarts."""

import numpy as np
import pytest
from objective_harness import slots_of
from rlax_maxtext.policies import OldPolicy, ReferencePolicy

from rlax_plugin.base.errors import ConfigError, TrainingError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.testing import make_arrays, make_batch, make_group, policy
from rlax_plugin.testing.model import BigramView
from rlax_plugin.training.objective.ratios import kl_estimate
from rlax_plugin.training.objective.terms import reported
from rlax_plugin.training.signals.chain import SignalChain

KL_IN_REWARD = {"coefficient": 0.1, "estimator": "k1", "placement": "reward"}


def view(version):
    """The model with the weights of a version."""
    return BigramView(policy.initial_weights(version), version, 0.7)


def batch(step, above=0.0):
    """Four rows of two trained tokens, of staleness 1, 2, 3, 1; see ``logprobs``.

    The sampler's log-probs lie ``above`` those of version 0.
    """
    groups = [make_group((1.0, 0.0), lengths=(2, 2), id=number) for number in (0, 1)]
    arrays = make_arrays(make_batch(step, groups), length=5)
    trained_bt = arrays["rl_mask"] > 0
    staleness_bt = np.array([1, 2, 3, 1])[:, None] * trained_bt
    behaviour_bt = np.where(trained_bt, logprobs(0, arrays) + above, 0)
    return arrays | {
        "rl_staleness": staleness_bt.astype(np.int32),
        "rl_behaviour_logprobs": behaviour_bt.astype(np.float32),
    }


def logprobs(version, data):
    return view(version).forward(data, "logprobs")["logprobs"]


@pytest.mark.parametrize("updates", [1, 2])
def test_reprefill_takes_each_tokens_own_version(updates):
    slots = slots_of("aipo", old_policy="reprefill", epochs=updates, max_staleness=3)

    def check(signal, step, kept):
        """``kept``: the version of which there is a copy when the batch of the step comes."""
        data = batch(step)
        found = signal.complete(view(step - 1), step, data)
        signal.learn(view(step - 1), step, data)
        trained_bt = data["rl_mask"] > 0
        version_bt = step - data["rl_staleness"]
        older_bt = trained_bt & (version_bt < step - 1)
        kept_bt = older_bt & (version_bt == kept)
        assert kept_bt.sum() == (0 if kept is None else 2)  # of one row
        known_bt = trained_bt if updates == 2 else kept_bt
        np.testing.assert_array_equal(found["rl_old_known"], known_bt)
        old_bt = logprobs(step - 1, data)
        if kept is not None:
            old_bt = np.where(kept_bt, logprobs(kept, data), old_bt)
        np.testing.assert_array_equal(found["rl_old_logprobs"], np.where(known_bt, old_bt, 0))
        missed = (older_bt & ~kept_bt).sum()
        assert signal.metrics["objective/reprefill_missed"] == (missed, 8)

    signal = OldPolicy(slots, 2, offload=False)  # workers reload versions 0, 2, ..
    signal.start(view(0))
    for step, kept in ((1, None), (2, 0), (3, 0), (4, 2)):
        check(signal, step, kept)
    resumed = OldPolicy(slots, 2, offload=False)
    resumed.start(view(3))
    for step, kept in ((4, None), (5, 3)):  # the copy of version 2 is lost
        check(resumed, step, kept)


def test_proximal_is_the_policy_before_the_first_update():
    signal = OldPolicy(slots_of("aipo", old_policy="proximal", epochs=2), 1, offload=False)
    data = batch(3)
    found = signal.complete(view(2), 3, data)
    np.testing.assert_array_equal(found["rl_old_known"], data["rl_mask"])
    expected_bt = np.where(data["rl_mask"] > 0, logprobs(2, data), 0)
    np.testing.assert_array_equal(found["rl_old_logprobs"], expected_bt)


def reference_of(directory, path="", kl=KL_IN_REWARD):
    slots = slots_of("reinforce", kl=kl)
    return slots, ReferencePolicy(slots, path, RunFiles(str(directory)), offload=False)


def test_the_reference_stays_what_training_started_from_and_its_kl_is_paid(tmp_path):
    for version in (0, 2):  # a start, and a restart
        _, signal = reference_of(tmp_path)
        signal.start(view(version))
        data = batch(version + 2, above=0.5)
        paid_bt = signal.complete(view(version + 1), version + 2, data)["rl_token_rewards"]
        np.testing.assert_allclose(paid_bt, -0.1 * 0.5 * data["rl_mask"], rtol=0, atol=1e-7)
        # k3 = exp(-0.5) + 0.5 - 1 = 0.1065307.
        for name, expected in (("k1", 0.5), ("k3", 0.1065307)):
            total, weight = signal.metrics[f"objective/reference_kl_{name}"]
            assert (total / weight, weight) == (pytest.approx(expected, rel=1e-5), 8)


def test_a_resumed_run_without_its_reference_is_a_config_error(tmp_path):
    for path, message in (("", "must be set: this run did not store"), ("nowhere", "nowhere")):
        _, signal = reference_of(tmp_path, path and str(tmp_path / path))
        with pytest.raises(ConfigError, match=f"rlax.objective.reference.path = .*{message}"):
            signal.start(view(3))


def chain_of(directory, **kl):
    adaptive = {"target": 0.1, "horizon": 64}
    slots, signal = reference_of(directory, kl=KL_IN_REWARD | {"adaptive": adaptive} | kl)
    return SignalChain(
        {"reference": signal}, RunFiles(str(directory)), slots.advantages, checkpoints=tuple
    )


def test_a_resumed_run_has_the_same_adaptive_coefficients_bit_for_bit(tmp_path):
    def coefficients(chain, steps):
        found = []
        for step in steps:
            chain.complete(view(step - 1), step, batch(step, above=0.02 * step))
            found.append(reported(chain.metrics)["objective/kl_coefficient"])
        return found

    chain = chain_of(tmp_path)
    chain.start(view(0), 0)
    assert coefficients(chain, range(1, 6))[0] == 0.1
    chain.save(5)
    undisturbed = coefficients(chain, range(6, 10))
    assert len(set(undisturbed)) == 4
    for _ in range(2):  # killed, and killed again before the next checkpoint
        again = chain_of(tmp_path)
        again.start(view(5), 5)
        assert coefficients(again, range(6, 10)) == undisturbed
    (tmp_path / "signals/00000005/reference/state.npz").unlink()
    with pytest.raises(TrainingError, match="is missing"):
        chain_of(tmp_path).start(view(5), 5)


def test_in_the_loss_the_adaptive_coefficient_is_an_array_of_the_batch(tmp_path):
    chain = chain_of(tmp_path, estimator="k3", placement="loss")
    assert set(chain.device_arrays) == {"rl_reference_logprobs", "rl_kl_coefficient"}
    chain.start(view(0), 0)
    first = chain.complete(view(0), 1, batch(1, above=0.5))
    assert np.unique(first["rl_kl_coefficient"]).tolist() == [np.float32(0.1)]
    np.testing.assert_array_equal(first["rl_reference_logprobs"], logprobs(0, first))
    # The mean over the 4 samples of 2 tokens' k3, in units of the target; at most 0.2 counts.
    error = min(2 * kl_estimate("k3", 0.5, np) / 0.1 - 1, 0.2)
    second = chain.complete(view(1), 2, batch(2))
    expected = 0.1 * (1 + error * 4 / 64)
    assert np.unique(second["rl_kl_coefficient"]) == pytest.approx([expected], rel=1e-6)
