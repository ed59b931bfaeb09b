"""The train step with logits for kept positions is that with logits for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalent_runs import FIGURES, SGD, entropy_too
from flax import nnx
from tiny_loop import ARRAYS, LENGTH, ROWS, batch, configure, train

from maxtext_overrides.kept_positions import logits_per_row
from maxtext_overrides.trainer.loss import make_loss_fn
from maxtext_overrides.trainer.model_outputs import BatchScores
from maxtext_overrides.trainer.train_loop import Events, fresh_weights, run_train_loop
from maxtext_overrides.upstream import lean_imports
from maxtext_overrides.variables import published
from rlax_plugin.base.errors import TrainingError

VOCAB = "vocab_size=512"
EXPERTS = (
    "decoder_block=mixtral",
    "num_experts=4",
    "num_experts_per_tok=2",
    "base_moe_mlp_dim=64",
    "load_balance_loss_weight=0.5",
    "sparse_matmul=false",  # the kernel for experts is compiled for minutes on a CPU
    "megablox=false",
)
KEPT = 8  # ``max_new_tokens`` of tiny.yml


def several_turns():
    """Answers with tool results between them, and a row that trains nothing."""
    data = batch(1)
    data["rl_mask"][:] = np.arange(LENGTH) % 4 > 1
    data["rl_mask"][3] = 0
    return data


def packed():
    data = several_turns()
    for side in ("inputs", "targets"):
        data[f"{side}_segmentation"][:] = 1 + (np.arange(LENGTH) > 6)
        data[f"{side}_position"][:] = np.arange(LENGTH) - 7 * (np.arange(LENGTH) > 6)
    return data


def reports_all(outputs, data):
    """A loss of log-probs, entropy and features, whose metrics are the outputs themselves.

    Log-probs are also shown as they come: those of targets that do not train tell which positions
    have logits.
    """
    loss_sum, weight, _ = entropy_too(outputs, data)
    trained_bt = data["rl_mask"] > 0
    features_bt = (outputs.further["features"] ** 2).mean(-1)
    loss_sum += 0.1 * jnp.where(trained_bt, features_bt, 0.0).sum()
    shown = {"logprobs": outputs.logprobs_bt, "entropy": outputs.entropy_bt}
    shown = {name: jnp.where(trained_bt, array, 0.0) for name, array in shown.items()}
    further = {"features": outputs.further["features"], "every logprob": outputs.logprobs_bt}
    return loss_sum, weight, shown | further


def seen_by(tmp_path, look, *argv):
    """Calls ``look(loop, config)`` before the first step, and trains none."""
    config = configure(tmp_path, VOCAB, *argv, steps=1)

    def on_start(loop):
        look(loop, config)
        raise TrainingError("seen enough")

    events = Events(batches=batch, on_step_end=lambda *_: None, on_start=on_start)
    with pytest.raises(TrainingError, match="seen enough"):
        run_train_loop(config, events, arrays=ARRAYS, objective=entropy_too)


def gradients(loop, config, data, loss_fn):
    """Outputs, loss and gradient of every variable; name -> array."""

    def step(model_state, data):
        model = nnx.merge(loop.graph, model_state, copy=True)
        (loss, aux), by_weights = nnx.value_and_grad(loss_fn, has_aux=True)(
            model, config, data, None, None
        )
        return aux["intermediate_outputs"]["rlax"] | {"loss": loss} | published(by_weights)

    with loop.shardings():
        return jax.device_get(jax.jit(step)(loop.model_state, data))


UNTIED, TILED, BARE = "logits_via_embedding=false", "num_vocab_tiling=4", "scan_layers=false"


@pytest.mark.parametrize(
    ("argv", "data"),
    [
        # Each kind of head, rows and layers is in one of the first two; CI tries all of them.
        pytest.param(("final_logits_soft_cap=3.0",), several_turns(), id="soft cap"),
        pytest.param((TILED, UNTIED, BARE), packed(), id="untied, tiled"),
        pytest.param((), batch(1), id="tied", marks=pytest.mark.ci),
        pytest.param((UNTIED,), packed(), id="untied", marks=pytest.mark.ci),
        pytest.param((TILED,), several_turns(), id="tiled", marks=pytest.mark.ci),
        pytest.param(EXPERTS, batch(1), id="experts", marks=pytest.mark.ci),
    ],
)
def test_outputs_and_gradients_are_those_of_all_positions(tmp_path, argv, data):
    maxtext, found = lean_imports.import_trainer(), []
    losses = [make_loss_fn(maxtext, reports_all, 0.8, ("features",), n) for n in (KEPT, None)]

    def look(loop, config):
        assert logits_per_row(config) == KEPT
        found.extend(gradients(loop, config, data, loss_fn) for loss_fn in losses)

    seen_by(tmp_path, look, *argv)
    kept, whole = found
    untrained_bt = data["rl_mask"] == 0
    assert np.all(kept.pop("every logprob")[untrained_bt] == 0)
    assert np.all(whole.pop("every logprob")[untrained_bt] < 0)
    for name, expected in whole.items():
        np.testing.assert_allclose(kept[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)
        assert np.abs(expected).max() > 1e-4, name
    assert kept["logprobs"].std() > 0.1


def test_a_run_trains_as_one_whose_bound_is_the_whole_row(tmp_path):
    def one_step(name, *argv):
        figures = {}

        def shows(outputs, data):
            loss_sum, weight, metrics = entropy_too(outputs, data)
            shown = jnp.where(data["rl_mask"] > 0, 0.0, outputs.logprobs_bt)
            return loss_sum, weight, metrics | {"untrained": (shown != 0).sum()}

        def on_step_end(loop, metrics):
            figures.update({key: metrics[key] for key in (*FIGURES, "untrained")})
            figures.update(fresh_weights(loop))

        config = configure(tmp_path / name, VOCAB, *SGD, *argv, steps=1)
        events = Events(batches=batch, on_step_end=on_step_end)
        run_train_loop(config, events, arrays=ARRAYS, objective=shows)
        return jax.device_get(figures)

    kept = one_step("kept")
    whole = one_step("whole", f"rlax.rollouts.max_new_tokens={LENGTH}")
    assert kept.pop("untrained") == 0
    assert whole.pop("untrained") == (batch(1)["rl_mask"] == 0).sum()
    assert set(kept) == set(whole)
    for name, expected in whole.items():
        np.testing.assert_allclose(kept[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)


def test_a_run_rejects_rows_that_train_more(tmp_path):
    with pytest.raises(TrainingError, match="a row trains 8 tokens, expected at most 7"):
        train(tmp_path, VOCAB, "rlax.rollouts.max_new_tokens=7")


def test_scores_are_of_the_sampled_tokens(tmp_path):
    """A batch that says no groups has all log-probs, and so has one with too many."""
    found = {}

    def look(loop, config):
        scores, data = BatchScores(config, 1.0), batch(1)
        given = {
            "all": {name: array for name, array in data.items() if name != "rl_group"},
            "sampled": data | {"rl_group": data["rl_mask"]},
            "too many": data | {"rl_group": np.ones((ROWS, LENGTH), np.int32)},
        }
        for name, arrays in given.items():
            found[name] = scores(loop, published(loop.model_state), arrays)

    seen_by(tmp_path, look)
    sampled_bt = batch(1)["rl_mask"] > 0
    assert found["all"].std() > 0.1 and (found["all"] != 0).all()
    np.testing.assert_allclose(
        found["sampled"], np.where(sampled_bt, found["all"], 0), rtol=0, atol=1e-6
    )
    np.testing.assert_array_equal(found["too many"], found["all"])
