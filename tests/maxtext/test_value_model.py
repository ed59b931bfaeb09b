"""A critic of MaxText's: its gradient, micro-batches, packing, state, and first weights."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from rlax_maxtext.critic.loss import value_loss
from rlax_maxtext.critic.model_config import critic_config
from rlax_maxtext.model_view import MaxTextView
from tiny_loop import LENGTH, ROWS, TINY, Recorder, batch, configure, train

from maxtext_overrides.trainer.value_model import MaxTextValueModel, _merged
from maxtext_overrides.variables import published
from rlax_plugin.api import Optimizer, ValueModelChoice
from rlax_plugin.base.errors import ConfigError, TrainingError
from rlax_plugin.config.loading import resolve

# Without decay, a step for a gradient g is -g / (|g| + 1): it tells the gradient.
TELLING = Optimizer(learning_rate=1.0, b1=0.0, b2=0.0, epsilon=1.0)
POLICY = ValueModelChoice("policy", {}, TELLING, "rlax.signals.0.start", "rlax.signals.0.model")
LOSS = value_loss(0.5)


def learned(step=1):
    """A batch with returns that differ, as a critic learns from it."""
    arrays = batch(step)
    mask_bt = arrays["rl_mask"]
    rng = np.random.default_rng(step)
    return {name: array for name, array in arrays.items() if not name.startswith("rl_")} | {
        "weights": mask_bt.astype(np.float32),
        "returns": rng.normal(size=mask_bt.shape).astype(np.float32),
        "old_values": np.zeros(mask_bt.shape, np.float32),
    }


WEIGHT = float(learned()["weights"].sum())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A policy after one step."""
    return train(tmp_path_factory.mktemp("policy"), "steps=1")


@pytest.fixture(scope="module")
def loop(trained):
    return trained.loop


def model_of(loop, choice=POLICY, *argv):
    given = resolve(TINY, ["base_output_directory=unused", *argv])
    return MaxTextValueModel(critic_config(given, choice.keys, choice.keys_key), loop, choice)


def test_a_critic_of_a_policy_with_adapters_has_none():
    lora = "lora={enable_lora: true, lora_rank: 2, lora_alpha: 2, lora_module_path: decoder/.*wo"
    given = resolve(
        TINY, ["base_output_directory=unused", f"{lora}, lora_restore_path: /a/items}}"]
    )
    config = critic_config(given, {}, "keys")
    assert not config.lora.enable_lora and config.lora.lora_restore_path == ""


def test_a_critic_starts_from_the_policy_with_its_adapters():
    kernel, a, b = (np.full(shape, 0.5, np.float32) for shape in ((3, 2, 4), (3, 2, 5), (5, 2, 4)))
    lora = SimpleNamespace(lora_alpha=4.0)
    policy = {"wo.kernel": kernel, "wo.kernel_lora_a": a, "wo.kernel_lora_b": b, "scale": a}
    policy = {name: jax.numpy.asarray(array) for name, array in policy.items()}
    found = _merged(policy, SimpleNamespace(lora=lora, param_scan_axis=1))
    assert found.keys() == {"wo.kernel", "scale"}
    np.testing.assert_allclose(found["wo.kernel"], 0.5 + 4 / 5 * 5 * 0.25)


def gradients(before, after):
    """Returns the arrays that the steps of ``TELLING`` report, by name."""
    flat = [
        jax.tree_util.tree_flatten_with_path(jax.device_get(tree))[0] for tree in (before, after)
    ]
    found = {}
    for (path, old), (_, new) in zip(*flat, strict=True):
        step = np.asarray(new, np.float64) - np.asarray(old, np.float64)
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        found[name] = -step / (1 - np.abs(step))
    return found


def test_the_gradient_by_hand_and_over_micro_batches(loop, tmp_path):
    model, data = model_of(loop), learned()
    assert not model.values(data).any()
    first = jax.device_get(model._trained.params)
    loss, sums = model.update(data, LOSS, WEIGHT)
    weights_bt, returns_bt = data["weights"], data["returns"].astype(np.float64)
    # Every value is 0, as before the batch: half of the squared returns, and nothing is clipped.
    assert loss == pytest.approx((weights_bt * returns_bt**2).sum() / 2, rel=1e-6)
    assert sums == {"clipped": 0.0}
    view = MaxTextView(configure(tmp_path), 1.0)
    view.show(loop)
    features_bte = view.forward(data, "features")["features"]  # of the policy, the critic's start
    found = gradients(first, model._trained.params)
    by_hand_e = -np.einsum("bt,bte->e", weights_bt * returns_bt, features_bte) / WEIGHT
    np.testing.assert_allclose(found["head.kernel"], by_hand_e, atol=2e-6)
    by_hand = -(weights_bt * returns_bt).sum() / WEIGHT
    np.testing.assert_allclose(found["head.bias"], by_hand, atol=1e-6)
    trunk = {name: slope for name, slope in found.items() if name.startswith("trunk.")}
    assert len(trunk) > 10 and not any(slope.any() for slope in trunk.values())  # the head is 0

    # Now the head is not 0, and the gradient flows into the trunk.
    unclipped = value_loss(0.0)
    second = jax.device_get(model._trained.params)
    halves = model_of(loop, POLICY, "gradient_accumulation_steps=2", "per_device_batch_size=4")
    halves._trained = jax.tree.map(jax.numpy.copy, model._trained)
    assert (model.rows, halves.rows) == (ROWS, ROWS // 2)
    model.update(data, unclipped, WEIGHT)
    halves.update(data, unclipped, WEIGHT)
    slopes, of_halves = (gradients(second, one._trained.params) for one in (model, halves))
    for name, slope in slopes.items():
        np.testing.assert_allclose(of_halves[name], slope, atol=3e-6, err_msg=name)
    name = "trunk.token_embedder.embedding"
    slope = slopes[next(key for key in slopes if key.startswith(name))]
    assert np.abs(slope).max() > 1e-3


def test_a_sequence_has_the_same_values_and_gradient_in_a_packed_row(loop):
    half = LENGTH // 2
    alone, packed = learned(), learned()
    for arrays in (alone, packed):
        for name in ("inputs", "targets", "returns"):
            arrays[name][1, :half] = arrays[name][0, half:]
        arrays["weights"][:] = 0.0
    for side in ("inputs", "targets"):  # row 0: two sequences; alone: the second of them in row 1
        packed[f"{side}_segmentation"][0, half:] = 2
        packed[f"{side}_position"][0, half:] = np.arange(half)
        alone[f"{side}_segmentation"][:2, half:] = 0
    packed["weights"][0] = 1.0
    alone["weights"][:2, :half] = 1.0
    models = {name: model_of(loop) for name in ("packed", "alone")}
    found = {}
    for name, arrays in (("packed", packed), ("alone", alone)):
        first = jax.device_get(models[name]._trained.params)
        for _ in range(2):
            models[name].update(arrays, LOSS, LENGTH)
        found[name] = (models[name].values(arrays), gradients(first, models[name]._trained.params))
    values_t = found["packed"][0][0]
    np.testing.assert_allclose(found["alone"][0][:2, :half].reshape(-1), values_t, atol=1e-5)
    for key, slope in found["alone"][1].items():
        np.testing.assert_allclose(slope, found["packed"][1][key], atol=1e-5, err_msg=key)


def test_a_restored_critic_goes_on_with_the_same_bits(loop, tmp_path):
    choice = replace(POLICY, optimizer=Optimizer(learning_rate=1e-2, max_norm=1.0))
    whole = model_of(loop, choice)
    for step in (1, 2):
        whole.update(learned(step), LOSS, WEIGHT)
    path = str(tmp_path / "signals" / "state")
    whole.save(path)
    whole.save(path)  # a killed process may have written it before
    again = model_of(loop, replace(choice, start="scratch"))
    again.restore(path)
    for model in (whole, again):
        model.update(learned(3), LOSS, WEIGHT)
    for old, new in zip(*map(jax.tree.leaves, (whole._trained, again._trained)), strict=True):
        assert np.asarray(old).tobytes() == np.asarray(new).tobytes()
    assert int(again._trained.count) == 3
    values_bt = again.values({name: array[:3] for name, array in learned().items()})
    np.testing.assert_array_equal(values_bt, again.values(learned())[:3])  # a part of a micro-batch
    with pytest.raises(TrainingError, match=r"nothing cannot be read as the state of this critic"):
        again.restore(str(tmp_path / "nothing"))
    deeper = replace(choice, start="scratch", keys={"base_num_decoder_layers": 1})
    with pytest.raises(TrainingError, match="cannot be read as the state of this critic"):
        model_of(loop, deeper).restore(path)


def test_a_loss_that_is_not_finite_is_an_error_and_changes_nothing(loop):
    model = model_of(loop)
    data = learned()
    data["returns"][ROWS - 1, -1] = np.nan
    before = jax.device_get(model._trained)
    with pytest.raises(TrainingError, match="loss of the values is nan"):
        model.update(data, LOSS, WEIGHT)
    for old, new in zip(*map(jax.tree.leaves, (before, model._trained)), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_critic_of_another_size_starts_from_scratch_or_from_its_own_checkpoint(loop, tmp_path):
    keys = {"base_num_decoder_layers": 1, "base_mlp_dim": 32}
    small = replace(POLICY, keys=keys, start="scratch")
    model = model_of(loop, small)
    shapes = {
        name: array.shape for name, array in published(model._trained.params["trunk"]).items()
    }
    assert "decoder.layers.mlp.wo.kernel" in shapes and "decoder.logits_dense.kernel" not in shapes
    assert (32, 1, 32) in shapes.values()
    with pytest.raises(ConfigError, match=r"rlax\.signals\.0\.start = 'policy': gives other weig"):
        model_of(loop, replace(small, start="policy"))
    with pytest.raises(ConfigError, match=r"rlax\.signals\.0\.start = '/no"):
        model_of(loop, replace(small, start="/nowhere/0/items"))
    for keys, message in (
        ({"base_emb_dimm": 8}, r"rlax\.signals\.0\.model.*base_emb_dim"),
        ({"vocab_size": 32}, r"makes vocab_size 32, must stay 64"),
        ({"max_target_length": 8}, r"makes max_target_length 8, must stay 16"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_of(loop, replace(small, keys=keys))


def test_a_frozen_policy_keeps_its_bits_and_begins_to_learn_afterwards(trained, tmp_path):
    """Weight decay alone would move it; the schedule of its learning rate waits too."""
    later = Recorder(batches=lambda step: batch(max(1, step - 1)))
    train(tmp_path, "steps=2", recorder=later, frozen_updates=1)
    first, frozen, moved = (jax.device_get(later.weights[version]) for version in range(3))
    for name, array in jax.device_get(trained.weights[1]).items():
        assert frozen[name].tobytes() == first[name].tobytes(), name
        np.testing.assert_allclose(moved[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
        assert (moved[name] != first[name]).any(), name
    steps = (later.metrics[1], later.metrics[2], trained.metrics[1])
    rates = [float(step["learning/current_learning_rate"]) for step in steps]
    assert rates[0] == 0 < rates[1] == rates[2]
