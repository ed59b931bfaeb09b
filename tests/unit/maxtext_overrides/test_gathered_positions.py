"""Positions that are gathered before the output layer, and what is put back behind it."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext_overrides.kept_positions import (
    LEAST_SAVED,
    KeptPositions,
    check_rows,
    fits,
    logits_per_row,
    outputs_at,
)
from maxtext_overrides.vocabulary import dense_outputs
from rlax_plugin.base.errors import TrainingError
from rlax_plugin.config import RlaxSection

WANTED = np.array([[0, 1, 0, 1], [0, 0, 1, 0]], bool)
VALUES = np.array([[10.0, 11, 12, 13], [20, 21, 22, 23]], np.float32)


def kept(count=2):
    return KeptPositions.of(jnp.asarray(WANTED), count)


@pytest.mark.parametrize("compiled", [False, True])
def test_wanted_positions_come_first_and_return_to_their_places(compiled):
    def both(values_bt):
        taken_bk = kept().take(values_bt)
        return taken_bk, kept().put_back(taken_bk)

    taken_bk, back_bt = (jax.jit(both) if compiled else both)(VALUES)
    np.testing.assert_array_equal(taken_bk, [[11, 13], [22, 20]])
    np.testing.assert_array_equal(back_bt, [[0, 11, 0, 13], [0, 0, 22, 0]])
    wide_bke = kept(3).take(np.stack([VALUES, -VALUES], axis=-1))
    np.testing.assert_array_equal(wide_bke[0], [[11, -11], [13, -13], [10, -10]])


def test_gradients_reach_wanted_positions_only():
    """Even those of a position that fills a row up, or of NaN where nothing is wanted."""
    weights_bk = jnp.array([[2.0, 3.0], [5.0, 7.0]])
    slope_bt = jax.grad(lambda x: (weights_bk * kept().take(x)).sum())(VALUES)
    np.testing.assert_array_equal(slope_bt, [[0, 2, 0, 3], [0, 0, 5, 0]])
    weights_bt = jnp.where(WANTED, jnp.arange(8.0).reshape(2, 4), jnp.nan)
    slope_bk = jax.grad(lambda x: (weights_bt * kept().put_back(x)).sum())(VALUES[:, :2])
    np.testing.assert_array_equal(slope_bk, [[1, 3], [6, 0]])


def a_head(count=None, wanted_bt=None, temperature=0.7):
    """(features, table) -> a loss of both outputs at wanted positions, and the outputs."""
    wanted_bt = jnp.asarray(WANTED if wanted_bt is None else wanted_bt)
    targets_bt = jnp.array([[3, 1, 4, 1], [5, 8, 2, 6]], jnp.int32)
    weights_bt = jnp.where(wanted_bt, jnp.linspace(-1.0, 2.0, 8).reshape(2, 4), 0.0)

    def loss(features_bte, table_ve):
        at = None if count is None else KeptPositions.of(wanted_bt, count)
        own = features_bte if at is None else at.take(features_bte)
        outputs = outputs_at(
            at,
            lambda targets, divisor: dense_outputs(own @ table_ve.T, targets, divisor),
            targets_bt,
            temperature,
        )
        terms_bt = weights_bt * (outputs.logprobs_bt - 0.3 * outputs.entropy_bt)
        return jnp.where(wanted_bt, terms_bt, 0.0).sum(), outputs

    return loss


def arguments():
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(2, 4, 8)).astype(np.float32),
        rng.normal(size=(11, 8)).astype(np.float32),
    )


@pytest.mark.parametrize("wanted_bt", [WANTED, np.ones((2, 4), bool), np.zeros((2, 4), bool)])
@pytest.mark.parametrize("temperature", [0.7, jnp.linspace(0.5, 1.5, 8).reshape(2, 4)])
def test_outputs_and_gradients_are_those_of_all_positions(wanted_bt, temperature):
    def results(count):
        loss = a_head(count, wanted_bt, temperature)
        slopes, outputs = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(*arguments())
        masked = (np.where(wanted_bt, array, 0) for array in outputs[:2])
        return *masked, *slopes

    most = max(1, int(wanted_bt.sum(axis=1).max()))
    for found, expected in zip(results(most), results(None), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("part", ["index_bk", "slot_bt"])
def test_a_gather_that_is_off_by_one_is_seen(part, monkeypatch):
    def outputs_and_slope():
        slope, outputs = jax.grad(a_head(2), has_aux=True)(*arguments())
        return np.where(WANTED, outputs.logprobs_bt, 0), slope

    expected = outputs_and_slope()
    right = KeptPositions.of

    def shifted(wanted_bt, count):
        positions = right(wanted_bt, count)
        limit = count if part == "slot_bt" else wanted_bt.shape[1]
        return positions._replace(**{part: (getattr(positions, part) + 1) % limit})

    monkeypatch.setattr(KeptPositions, "of", shifted)
    for found, true in zip(outputs_and_slope(), expected, strict=True):
        assert np.abs(found - true).max() > 0.1


def test_entropy_that_is_only_reported_costs_no_backward_pass():
    def flops(used):
        def loss(features_bte, table_ve):
            outputs = a_head(2)(features_bte, table_ve)[1]
            return (outputs.logprobs_bt + used(outputs.entropy_bt)).sum()

        return jax.jit(jax.grad(loss)).lower(*arguments()).compile().cost_analysis()["flops"]

    unused = flops(jnp.zeros_like)
    assert flops(jax.lax.stop_gradient) == unused
    assert flops(lambda entropy_bt: entropy_bt) > 1.05 * unused


def config(vocab_size=49152, shard_mode="auto", length=None, use_m3_model=False, **section):
    given = {"max_prompt_tokens": 100, "max_new_tokens": 50} | section.pop("rollouts", {})
    rlax = RlaxSection(
        prompt_source={"name": "none"}, rewards=({"name": "none"},), rollouts=given, **section
    )
    length = length or rlax.row_tokens
    return SimpleNamespace(
        rlax=rlax,
        max_target_length=length,
        vocab_size=vocab_size,
        shard_mode=shard_mode,
        use_m3_model=use_m3_model,
    )


def test_a_row_needs_as_many_logits_as_it_can_have_sampled_tokens():
    assert logits_per_row(config()) == 50
    calculator = {"environment": {"name": "calculator"}}
    turns = calculator | {"episodes": {"max_turns": 3, "max_tokens": 400}}
    assert logits_per_row(config(**turns)) == 150
    turns["episodes"] = {"max_turns": 9, "max_tokens": 400}
    assert logits_per_row(config(**turns)) == 400  # of 500
    assert logits_per_row(config(batches={"sequences_per_row": 2})) == 100  # of 150
    assert logits_per_row(config(batches={"sequences_per_row": 3})) is None
    shared = {"batches": {"sequences_per_row": 4, "shared_prompts": True}}
    assert logits_per_row(config(rollouts={"group_size": 4}, **shared)) == 200  # of 300


def test_where_heads_cannot_be_replaced_or_it_does_not_pay_all_positions_have_logits():
    assert logits_per_row(config(shard_mode="explicit")) is None
    assert logits_per_row(config(use_m3_model=True)) is None
    most = 1.5 * LEAST_SAVED  # of 150 positions 100 are left out
    assert logits_per_row(config(vocab_size=int(most))) == 50
    assert logits_per_row(config(vocab_size=int(most) - 1)) is None


def test_a_row_that_trains_more_is_an_error():
    batch = {"rl_mask": WANTED.astype(np.int32)}
    assert fits(batch["rl_mask"], 2) and not fits(batch["rl_mask"], 1) and not fits(WANTED, None)
    assert fits(WANTED[:0], 1)  # a host without rows
    check_rows(7, batch, 2)
    check_rows(7, batch, None)
    with pytest.raises(TrainingError, match="batch of step 7: a row trains 2 tokens, expected at"):
        check_rows(7, batch, 1)
