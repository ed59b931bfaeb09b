"""Parameters that a signal learns: steps by hand, with arrays of numpy and JAX, and their state."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlax_plugin.api import Learner, Optimizer, RunFiles, SignalState, TrainingError

ADAM = Optimizer(learning_rate=0.1, b1=0.5, b2=0.75, epsilon=1.0, weight_decay=0.5)


def state_of(tmp_path, step=3):
    return SignalState(RunFiles(tmp_path), step, "mine")


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_two_steps_by_hand(array):
    learner = Learner(ADAM, {"w": array([2.0, -4.0], np.float32)})
    learner.update({"w": array([3.0, 0.0], np.float32)})
    # Corrected mean 3 and square 9: 2 - .1 (3 / (3 + 1) + .5 * 2); and -4 - .1 (0 - 2).
    np.testing.assert_allclose(learner.params["w"], [1.825, -3.8], rtol=1e-6)
    learner.update({"w": array([-1.0, 0.0], np.float32)})
    # mean (.5 * 1.5 - .5) / .75 = 1/3; square (.75 * 2.25 + .25) / .4375 = 31/7.
    expected = 1.825 - 0.1 * ((1 / 3) / ((31 / 7) ** 0.5 + 1) + 0.5 * 1.825)
    np.testing.assert_allclose(learner.params["w"], [expected, -3.61], rtol=1e-6)
    assert learner.params["w"].dtype == np.float32


def test_a_large_gradient_is_scaled_down_to_the_norm():
    plain = Optimizer(learning_rate=1.0, b1=0.0, b2=0.0, epsilon=1.0, max_norm=2.5)
    learner = Learner(plain, {"a": np.zeros(1), "b": np.zeros(1)})
    learner.update({"a": np.array([3.0]), "b": np.array([-4.0])})  # norm 5, so half of it
    assert learner.params["a"] == pytest.approx(-1.5 / 2.5)
    assert learner.params["b"] == pytest.approx(2.0 / 3.0)
    learner = Learner(plain, {"a": np.zeros(1)})
    learner.update({"a": np.array([1.0])})
    assert learner.params["a"] == pytest.approx(-0.5)


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_a_restored_learner_goes_on_with_the_same_bits(tmp_path, array):
    rng = np.random.default_rng(0)
    gradients = [{"w": array(rng.normal(size=5).astype(np.float32))} for _ in range(6)]
    whole, first = (Learner(ADAM, {"w": np.ones(5, np.float32)}) for _ in range(2))
    for gradient in gradients:
        whole.update(gradient)
    for gradient in gradients[:3]:
        first.update(gradient)
    first.save(state_of(tmp_path))
    second = Learner(ADAM, {"w": np.zeros(5, np.float32)})
    second.restore(state_of(tmp_path))
    for gradient in gradients[3:]:
        second.update(gradient)
    assert np.asarray(second.params["w"]).tobytes() == np.asarray(whole.params["w"]).tobytes()


def test_other_parameters_are_one_error(tmp_path):
    learner = Learner(ADAM, {"w": np.zeros(2)})
    with pytest.raises(TrainingError, match=r"has the shapes \{'w': \(3,\)\}, expected"):
        learner.update({"w": np.zeros(3)})
    learner.save(state_of(tmp_path))
    wider = Learner(ADAM, {"w": np.zeros(3)})
    with pytest.raises(TrainingError, match=r"learner\.npz holds .*not the parameters of this con"):
        wider.restore(state_of(tmp_path))
    with pytest.raises(TrainingError, match=r"signals/00000004/mine/learner\.npz is missing"):
        learner.restore(state_of(tmp_path, step=4))


@pytest.mark.parametrize("max_norm", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_an_error_and_changes_nothing(value, max_norm):
    options = Optimizer(learning_rate=0.1, max_norm=max_norm)
    learner, other = (Learner(options, {"a": np.ones(1), "w": np.ones(2)}) for _ in range(2))
    good = {"a": np.ones(1), "w": np.array([0.5, -0.5])}
    for one in (learner, other):
        one.update(good)
    with pytest.raises(TrainingError, match="1 of 2 values of the gradient of 'w' are NaN"):
        learner.update({"a": np.ones(1), "w": np.array([1.0, value])})
    for one in (learner, other):
        one.update(good)
    for name, param in other.params.items():
        assert learner.params[name].tobytes() == param.tobytes()


def test_a_complex_gradient_is_rejected_before_it_changes_anything():
    learner = Learner(Optimizer(), {"w": np.ones(2)})
    with pytest.raises(TrainingError, match="gradient of 'w' is complex128, not real numbers"):
        learner.update({"w": np.array([1.0, 1.0j])})
    assert learner.params["w"].tolist() == [1.0, 1.0]
