"""Critics on the toy policy: values and learning by hand, over kills, and in a warm-up."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlax_maxtext.critic.checking import check_critic_start
from rlax_maxtext.critic.loss import token_weights, value_loss
from rlax_maxtext.critic.options import CriticConfig, ValueHeadConfig
from rlax_maxtext.critic.signal import Critic, ValueHead, cut_states
from rlax_objectives.advantages import Gae
from toy_context import toy_context

from rlax_plugin.api import ConfigError, Optimizer, RunFiles, SignalChain, TrainingError
from rlax_plugin.base.types import Score, ScoredGroup
from rlax_plugin.build import registry_for
from rlax_plugin.testing import (
    FakeTrainerPort,
    make_batch,
    make_episode,
    make_group,
    make_prompt,
    make_sampled,
    policy,
)
from rlax_plugin.testing.model import BigramView
from rlax_plugin.training.objective.batches import build_arrays
from rlax_plugin.training.objective.diagnostics import summarise
from rlax_plugin.training.objective.terms import reported

PLAIN = Gae(whiten_over="none", truncated="bootstrap")


# --- the loss ------------------------------------------------------------------------------------
# Within 0.5 of the old value 0 the unclipped error counts; of 0.9, which 0.5 clips away from its
# return 1, the clipped one; of -1, which is still further away than -0.5, the unclipped one.
VALUES = [0.9, 0.25, -1.0, np.nan]
DATA = {"weights": [1.0, 0.5, 1.0, 0.0], "returns": [1.0, 1.0, 1.0, np.nan]}
DATA["old_values"] = [0.0, 0.0, 0.0, np.inf]


@pytest.mark.parametrize("jit", [lambda function: function, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_loss_and_its_gradient_by_hand(dtype, jit):
    with jax.enable_x64(dtype == "float64"):
        data = {name: jnp.array([row], dtype) for name, row in DATA.items()}
        values_bt = jnp.array([VALUES], dtype)
        function = jit(jax.value_and_grad(value_loss(0.5), has_aux=True))
        (total, sums), slope_bt = function(values_bt, data)
        assert total.dtype == dtype
        assert total == pytest.approx((0.25 + 0.5 * 0.5625 + 4.0) / 2, rel=1e-6)
        assert sums == {"clipped": 1.0}
        np.testing.assert_allclose(slope_bt, [[0.0, -0.375, -2.0, 0.0]], rtol=1e-6)
        (total, _), slope_bt = jit(jax.value_and_grad(value_loss(0.0), has_aux=True))(
            values_bt, data
        )
        assert total == pytest.approx((0.01 + 0.5 * 0.5625 + 4.0) / 2, rel=1e-6)
        np.testing.assert_allclose(slope_bt, [[-0.1, -0.375, -2.0, 0.0]], rtol=1e-5)


def test_the_weight_of_a_token():
    mask_bt = np.array([[0, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]])
    segmentation_bt = np.array([[1, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 0]])
    found_bt = token_weights("token_mean", mask_bt, segmentation_bt)
    np.testing.assert_array_equal(found_bt, mask_bt)
    found_bt = token_weights("sequence_mean", mask_bt, segmentation_bt)
    expected = [[0, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2], [1 / 2, 1 / 2, 0, 0, 0, 0]]
    np.testing.assert_array_equal(found_bt, np.array(expected, np.float32))


# --- batches -------------------------------------------------------------------------------------
PROMPT = make_prompt(tokens=np.array([2, 3], np.int32))


def batch_of(step=1, **layout):
    """Rewards 1, 0 and 0.5 for the tokens 4 5, 6, which was truncated, and 7 8 9."""
    episodes = tuple(
        make_episode(make_sampled(tokens=tokens, finish=finish), index=i, prompt=PROMPT)
        for i, (tokens, finish) in enumerate(
            (([4, 5], "stop"), ([6], "length"), ([7, 8, 9], "stop"))
        )
    )
    scores = tuple(Score(reward) for reward in (1.0, 0.0, 0.5))
    group = ScoredGroup(1, 1, PROMPT, episodes, scores)
    return build_arrays(make_batch(step, [group]), length=8, **(layout or {"rows": 3}))


PACKED = {"rows": 2, "sequences_per_row": 2}


@pytest.mark.parametrize("layout", [{"rows": 3}, PACKED], ids=["alone", "packed"])
def test_the_state_in_which_a_sample_was_cut_ends_with_its_last_token(layout):
    batch = batch_of(**layout)
    found = cut_states(batch)
    assert batch["targets"][found.at].tolist() == [6]
    assert found.rows["inputs"].tolist() == [[2, 3, 6, 0, 0, 0, 0, 0]]
    assert found.rows["inputs_segmentation"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]]
    assert found.rows["inputs_position"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert found.ends.tolist() == [2]
    batch["rl_truncated"][:] = 0
    assert cut_states(batch).ends.size == 0


def view_of(rows=0):
    """The features of the tokens 3 to 8 are one coordinate each, with the values 1 to 6."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in policy.SHAPES.items()}
    for index in range(6):
        weights["table"][3 + index, index] = 1.0 + index
    return BigramView(weights, 0, 1.0, part_rows=rows)


# A learning rate against the sign of the gradient, nearly.
SIGN = Optimizer(learning_rate=0.25, b1=0.0, b2=0.0, epsilon=1e-12)


def head_of(**options):
    return ValueHead(ValueHeadConfig(**{"optimizer": SIGN, **options}), 0)


def critic_of(**options):
    config = CriticConfig(**{"start": "policy", "optimizer": SIGN.model_dump(), **options})
    return Critic(config, 0, "rlax.signals.0")


def chain_of(tmp_path, signal, slot=PLAIN):
    chain = SignalChain({"tried": signal}, RunFiles(tmp_path), slot, checkpoints=tuple)
    return chain


@pytest.mark.parametrize(("made", "layout"), [(head_of, PACKED), (critic_of, {"rows": 3})])
def test_two_steps_by_hand(tmp_path, made, layout):
    signal, view, batch = made(clip=0.0), view_of(rows=1), batch_of(**layout)
    chain = chain_of(tmp_path, signal)
    chain.start(view, 0)
    trained_bt = batch["rl_mask"] > 0
    order = np.argsort(batch["targets"][trained_bt])  # of the tokens 4, 5, 6, 7, 8, 9

    def of_tokens(completed, name):
        return completed[name][trained_bt][order].tolist()

    first = chain.complete(view, 1, batch)
    assert of_tokens(first, "rl_advantages") == [1, 1, 0, 0.5, 0.5, 0.5]
    assert of_tokens(first, "rl_returns") == [1, 1, 0, 0.5, 0.5, 0.5]
    assert reported(chain.metrics)["objective/value_loss"] == pytest.approx(2.75 / 2 / 6)
    # The gradient of the bias is -3.5 / 6, and so it goes up by .25. Before 4, 6 and 7 the token is
    # 3, whose coordinate has the gradient -(1 + 0 + .5) / 6; before 5, 8 and 9 it is 4, 7 and 8,
    # with -2, -2.5 and -3 / 6. All go up as well. No other token is read.
    second = chain.complete(view, 2, batch)
    expected = [0.25 + 0.25 * feature for feature in (1, 2, 1, 1, 5, 6)]
    np.testing.assert_allclose(of_tokens(second, "rl_values"), expected, rtol=1e-6)
    # Behind the 6, whose coordinate is the fourth and still 0, the value is the bias.
    np.testing.assert_allclose(of_tokens(second, "rl_returns"), [1, 1, 0.25, 0.5, 0.5, 0.5])
    error = np.array(expected) - [1, 1, 0.25, 0.5, 0.5, 0.5]
    assert reported(chain.metrics)["objective/value_loss"] == pytest.approx((error**2).mean() / 2)
    returns = np.array([1, 1, 0.25, 0.5, 0.5, 0.5])
    spread = {name: total for name, total in chain.metrics.items() if name.startswith("values/")}
    report = summarise({"tokens": 6, "sequences": 3, "gap_count": 0, **spread, **RAW})
    explained = 1 - error.var() / returns.var()
    assert report["objective/explained_variance"] == pytest.approx(explained)


RAW = dict.fromkeys(
    ("behaviour/w", "behaviour/w2", "behaviour/logprob", "behaviour/behaviour_logprob"), 1.0
)


def test_equal_returns_explain_nothing(tmp_path):
    chain = chain_of(tmp_path, head_of())
    chain.start(view_of(), 0)
    group = make_group((0.1, 0.1, 0.1), prompt=PROMPT)
    chain.complete(view_of(), 1, build_arrays(make_batch(1, [group]), rows=3, length=8))
    totals = {"tokens": 9, "sequences": 3, "gap_count": 0} | chain.metrics | RAW
    assert "objective/explained_variance" not in summarise(totals)
    assert summarise(totals)["objective/returns"] == pytest.approx(0.1)


def test_updates_differ_with_mini_batches_and_count_each_token_once_an_epoch(tmp_path):
    values = {}
    for name, options in (
        ("one", {}),
        ("epochs", {"epochs": 3}),
        ("mini", {"epochs": 3, "mini_batches": 2, "aggregation": "sequence_mean"}),
    ):
        signal = head_of(optimizer={"learning_rate": 0.01}, **options)
        chain = chain_of(tmp_path, signal)
        chain.start(view_of(), 0)
        chain.complete(view_of(), 1, batch_of())
        values[name] = chain.complete(view_of(), 2, batch_of())["rl_values"]
        assert 0 < reported(chain.metrics)["objective/value_loss"] < 3 / 6
    assert np.abs(values["epochs"]).max() > 2 * np.abs(values["one"]).max()
    assert np.abs(values["mini"] - values["epochs"]).max() > 1e-3


# --- runs ----------------------------------------------------------------------------------------
LEARNS = {"epochs": 2, "mini_batches": 2, "optimizer": {"learning_rate": 0.05}}


def train(directory, name, *, port=None, steps=6, **options):
    port = port or FakeTrainerPort()
    signal = {"name": name, **LEARNS, **options}
    objective = {"advantage": {"name": "gae", "lam": 0.9}}
    context = toy_context(directory, signal, objective=objective, steps=steps)
    context.part("trainer", context.section.trainer, "rlax.trainer").run(port)
    port.close()
    return port


@pytest.mark.parametrize("name", ["critic", "value_head"])
def test_a_killed_run_goes_on_with_the_bits_of_an_undisturbed_one(tmp_path, name):
    whole = train(tmp_path / "a", name)
    train(tmp_path / "b", name, port=FakeTrainerPort(stop_after=3))
    parts = train(tmp_path / "b", name)
    for variable, array in whole.published[6].items():
        assert array.tobytes() == parts.published[6][variable].tobytes()
    means = [one.metrics[6] | reported(one.metrics[6]) for one in (whole, parts)]
    for metric in ("advantage", "value", "returns", "value_loss", "value_clipped"):
        assert means[0][f"objective/{metric}"] == means[1][f"objective/{metric}"]
    states = [sorted((tmp_path / run / "run/signals/00000006").rglob("*.npz")) for run in "ab"]
    (old,), (new,) = states
    assert old.read_bytes() == new.read_bytes()
    new.write_bytes(new.read_bytes()[:-9])
    with pytest.raises(TrainingError, match=r"signals/00000006/.*\.npz is damaged"):
        train(tmp_path / "b", name, steps=7)
    new.unlink()
    with pytest.raises(TrainingError, match=r"signals/00000006/.*\.npz is missing"):
        train(tmp_path / "b", name, steps=7)


def test_in_a_warm_up_only_the_critic_learns(tmp_path):
    port = train(tmp_path, "critic", warm_up_steps=3)
    table = {version: port.published[version]["table"].tobytes() for version in range(7)}
    assert table[0] == table[1] == table[2] == table[3]
    assert len({table[version] for version in range(3, 7)}) == 4
    values = [port.metrics[step]["objective/value"] for step in range(1, 5)]
    assert values[0] == 0 and len(set(values)) == 4


@pytest.mark.parametrize(
    ("signal", "objective", "message"),
    [
        (
            {"name": "critic"},
            {},
            r"advantage\.name = 'group_normalised': reads no values, so a cri",
        ),
        (
            {"name": "value_head", "mini_batches": 5},
            None,
            r"signals\.0\.mini_batches = 5: must not",
        ),
        (
            {"name": "critic", "warm_up_steps": 4},
            None,
            r"warm_up_steps = 4: must be below the 4 st",
        ),
        ({"name": "critic", "clip": -1}, None, r"rlax\.signals\.0\.clip"),
        ({"name": "value_head", "start": "policy"}, None, r"rlax\.signals\.0\.start"),
    ],
)
def test_options_without_effect_are_one_error(tmp_path, signal, objective, message):
    given = {"advantage": {"name": "gae"}} if objective is None else objective
    with pytest.raises(ConfigError, match=message):
        context = toy_context(tmp_path, signal, objective=given)
        registry_for(context.section).check_start(context.section, context)


def test_a_warm_up_would_use_up_demonstrations_beside_rl(tmp_path):
    context = toy_context(tmp_path, {"name": "critic"}, objective={"advantage": {"name": "gae"}})
    trainer = type(context.section.trainer)(name="maxtext", demonstrations={"rows": 2})
    section = context.section.model_copy(update={"trainer": trainer})
    context = dataclasses.replace(context, section=section)
    check_critic_start(CriticConfig(), context)
    with pytest.raises(ConfigError, match=r"warm_up_steps = 1: must be 0 with rlax\.trainer\.demo"):
        check_critic_start(CriticConfig(warm_up_steps=1), context)


def test_a_model_of_another_size_needs_a_trainer_that_makes_one(tmp_path):
    with pytest.raises(ConfigError, match=r"rlax\.signals\.0\.model = .*must be empty with a toy"):
        train(tmp_path, "critic", model={"base_emb_dim": 8})
