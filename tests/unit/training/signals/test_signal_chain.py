"""Signals around the advantages of a batch: their order, their sums, what is rejected."""

from typing import Any

import numpy as np
import pytest

from rlax_plugin.api import (
    ArraySpec,
    BatchSignal,
    Learner,
    LossTerm,
    Optimizer,
    RunFiles,
    SignalChain,
    TrainingError,
)
from rlax_plugin.testing import make_arrays, make_batch, make_group
from rlax_plugin.training.objective.terms import reported

FLAGS = ArraySpec(np.dtype(np.int8), (2,))
FLOAT64 = ArraySpec(np.dtype(np.float64))


class Signal(BatchSignal):
    """Adds what it is told to, and notes what it is shown."""

    def __init__(self, name: str, arrays: dict[str, ArraySpec], found: dict[str, Any], log: list):
        self.name, self.arrays, self._found, self._log = name, arrays, found, log

    def start(self, model):
        self._log.append((self.name, "start", model))

    def complete(self, model, step, batch):
        self._log.append((self.name, "complete", model, step, sorted(batch.keys() - PLAIN)))
        self.metrics = {f"objective/{self.name}": (float(step), 4.0)}
        return self._found

    def learn(self, model, step, batch):
        self._log.append((self.name, "learn", model, step, batch["rl_advantages"].copy()))


def two_groups():
    """Rewards 1 and 0, in two tokens each: rows 0 and 1, and again rows 2 and 3."""
    groups = [make_group((1.0, 0.0), lengths=(2, 2), id=number) for number in (0, 1)]
    return make_arrays(make_batch(1, groups), length=5)


BATCH = two_groups()
PLAIN = BATCH.keys()
ROWS, LENGTH = BATCH["rl_mask"].shape
COMPLETION = BATCH["rl_mask"] > 0


def returns(outcomes):
    """Return-to-go less the value of the state."""
    values_nt = 0 if outcomes.values_nt is None else outcomes.values_nt
    return outcomes.returns_nt - values_nt


def chain_of(tmp_path, *signals, advantages=returns, **options):
    named = {signal.name: signal for signal in signals}
    return SignalChain(named, RunFiles(tmp_path), advantages, checkpoints=tuple, **options)


def test_every_signal_sees_what_came_before_and_learns_after_the_advantages(tmp_path):
    log: list = []
    flags = np.ones((ROWS, LENGTH, 2), np.int8)
    values_bt = np.full((ROWS, LENGTH), 0.25)
    chain = chain_of(
        tmp_path,
        Signal("first", {"flags": FLAGS}, {"flags": flags}, log),
        Signal("second", {"rl_values": FLOAT64}, {"rl_values": values_bt}, log),
        epochs=3,
    )
    assert chain.device_arrays == {"flags": FLAGS}
    chain.start("weights 0", 0)
    completed = chain.complete("weights 0", 1, BATCH)
    assert log[:4] == [
        ("first", "start", "weights 0"),
        ("second", "start", "weights 0"),
        ("first", "complete", "weights 0", 1, []),
        ("second", "complete", "weights 0", 1, ["flags"]),
    ]
    # The reward, 1 or 0, less 0.25.
    expected_bt = np.where(COMPLETION, np.array([0.75, -0.25] * 2)[:, None], 0.0)
    for entry, name in zip(log[4:], ("first", "second"), strict=True):
        assert entry[:4] == (name, "learn", "weights 0", 1)
        np.testing.assert_array_equal(entry[4], expected_bt)
    np.testing.assert_array_equal(completed["rl_advantages"], expected_bt)
    assert completed["rl_advantages"].dtype == np.float32
    assert completed.keys() == PLAIN | {"flags", "rl_values", "rl_returns"}
    returns_bt = np.where(COMPLETION, np.array([1.0, 0.0] * 2)[:, None], 0.0)
    np.testing.assert_array_equal(completed["rl_returns"], returns_bt)
    # 8 tokens, three times: 4 of 0.75 and 4 of -0.25. Returns 1 and 0 are 0.5 from their mean, and
    # so they are less the values, which are all equal: these explain nothing.
    assert chain.metrics == {
        "objective/value": 3 * 2.0,
        "objective/returns": 3 * 4.0,
        "values/returns_spread": 3 * 2.0,
        "values/error_spread": 3 * 2.0,
        "objective/advantage": 3 * 2.0,
        "objective/advantage_abs": 3 * 4.0,
        **dict.fromkeys(("term_sum/first", "term_sum/second"), 1.0),
        **dict.fromkeys(("term_weight/first", "term_weight/second"), 4.0),
    }
    assert reported(chain.metrics) == {"objective/first": 0.25, "objective/second": 0.25}
    np.testing.assert_array_equal(BATCH["rl_advantages"], two_groups()["rl_advantages"])


def test_token_rewards_of_several_signals_add_up(tmp_path):
    spec = {"rl_token_rewards": FLOAT64}
    paid = [np.where(COMPLETION, amount, 0.0) for amount in (0.5, -0.125)]
    signals = [
        Signal(f"s{i}", spec, {"rl_token_rewards": paid_bt}, []) for i, paid_bt in enumerate(paid)
    ]
    chain = chain_of(tmp_path, *signals)
    assert chain.device_arrays == {}
    advantages_bt = chain.complete("", 1, BATCH)["rl_advantages"]
    # 0.375 for this token, and as much for the one that follows the first.
    np.testing.assert_array_equal(
        advantages_bt[COMPLETION].reshape(4, 2), [[1.75, 1.375], [0.75, 0.375]] * 2
    )


def test_without_an_input_of_theirs_the_advantages_stay_the_recorded_ones(tmp_path):
    def never(outcomes):
        raise AssertionError("nothing is to be computed")

    flags = np.zeros((ROWS, LENGTH, 2), np.int8)
    signal = Signal("first", {"flags": FLAGS}, {"flags": flags}, [])
    chain = chain_of(tmp_path, signal, advantages=never)
    completed = chain.complete("", 7, BATCH)
    assert completed["rl_advantages"] is BATCH["rl_advantages"]
    assert reported(chain.metrics) == {"objective/first": 1.75}
    empty = chain_of(tmp_path, advantages=never)
    assert empty.complete("", 7, BATCH) == BATCH and empty.metrics == {}
    empty.save(1)
    assert RunFiles(tmp_path).names("") == []


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ([("../a", {})], r"a signal is named '\.\./a'"),
        (
            [("a", {"flags": FLAGS}), ("b", {"flags": FLAGS})],
            "signal 'b' adds flags, which signal 'a' has already",
        ),
        ([("a", {"rl_advantages": FLOAT64})], "adds rl_advantages, which the batch has already"),
        ([("a", {"rl_values": FLAGS})], r"adds rl_values as ArraySpec\(.*expected ArraySpec\("),
    ],
)
def test_signals_that_do_not_go_together_are_rejected(signals, expected, tmp_path):
    with pytest.raises(TrainingError, match=expected):
        chain_of(tmp_path, *(Signal(name, arrays, {}, []) for name, arrays in signals))


def test_two_signals_do_not_add_one_term(tmp_path):
    signals = [Signal(name, {}, {}, []) for name in "ab"]
    term = LossTerm(lambda outputs, data: 0.0, lambda data: 1.0)
    signals[0].terms = {"one": term}
    signals[1].terms = {"two": term}
    assert list(chain_of(tmp_path, *signals).terms) == ["one", "two"]
    signals[1].terms = {"one": term}
    with pytest.raises(TrainingError, match="signal 'b' adds the term 'one' to the loss, as anoth"):
        chain_of(tmp_path, *signals)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, r"step 4: signal 'a' returned \[\], expected \['flags'\]"),
        ({"flags": 0, "other": 0}, r"returned \['flags', 'other'\], expected \['flags'\]"),
        (
            {"flags": np.zeros((ROWS, LENGTH), np.int8)},
            r"flags of signal 'a' is int8\[4, 5\], expected int8\[4, 5, 2\]",
        ),
    ],
)
def test_other_arrays_than_declared_are_rejected(found, expected, tmp_path):
    chain = chain_of(tmp_path, Signal("a", {"flags": FLAGS}, found, []))
    with pytest.raises(TrainingError, match=expected):
        chain.complete("", 4, BATCH)


class Careless(BatchSignal):
    """Does to the batch, and says, what a test wants."""

    def __init__(self, act=lambda batch: None, arrays=None, **attributes):
        self.name, self._act, self._found = "careless", act, arrays or {}
        self.arrays = dict.fromkeys(self._found, FLOAT64)
        vars(self).update(attributes)

    def complete(self, model, step, batch):
        return self._found

    def learn(self, model, step, batch):
        self._act(batch)


def test_a_signal_cannot_change_what_is_trained_on(tmp_path):
    def clear(batch):
        batch["rl_mask"][:] = 0

    with pytest.raises(ValueError, match="read-only") as failed:
        chain_of(tmp_path, Careless(clear)).complete("weights 0", 3, BATCH)
    assert failed.value.__notes__ == ["in signal 'careless', step 3"]
    replaced = chain_of(tmp_path, Careless(lambda batch: batch.clear()))
    assert replaced.complete("weights 0", 3, BATCH).keys() == BATCH.keys()
    assert BATCH["rl_mask"].flags.writeable


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_name_their_signal(tmp_path, value):
    values_bt = np.zeros((ROWS, LENGTH))
    values_bt[~COMPLETION] = value  # nothing reads these
    chain_of(tmp_path, Careless(arrays={"rl_values": values_bt})).complete("weights 0", 1, BATCH)
    values_bt[0, np.argmax(COMPLETION[0])] = value
    chain = chain_of(tmp_path, Careless(arrays={"rl_values": values_bt}))
    expected = "step 1: rl_values of signal 'careless' is NaN or infinite at 1 of 8 trained tokens"
    with pytest.raises(TrainingError, match=expected):
        chain.complete("weights 0", 1, BATCH)


def test_a_signal_that_returns_nothing_or_names_a_metric_of_others_is_named(tmp_path):
    silent = Careless()
    silent._found = None
    with pytest.raises(TrainingError, match=r"signal 'careless' returned None, expected \[\]"):
        chain_of(tmp_path, silent).complete("weights 0", 1, BATCH)
    loud = chain_of(tmp_path, Careless(metrics={"reward/mean": 1.0}))
    with pytest.raises(TrainingError, match="'careless' has a metric 'reward/mean', expected obj"):
        loud.complete("weights 0", 1, BATCH)


def test_an_error_of_a_learner_names_the_signal(tmp_path):
    learner = Learner(Optimizer(), {"w": np.zeros(1)})
    careless = Careless(lambda batch: learner.update({"w": np.full(1, np.nan)}))
    with pytest.raises(TrainingError, match=r"^signal 'careless', step 2: 1 of 1 values of the gr"):
        chain_of(tmp_path, careless).complete("weights 0", 2, BATCH)
