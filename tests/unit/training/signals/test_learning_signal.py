"""A signal plug-in that learns, on the toy trainer: numbers by hand, over kills, and errors."""

import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from toy_context import toy_context

from rlax_plugin.api import (
    ADVANTAGE_INPUTS,
    BatchSignal,
    ConfigError,
    Extension,
    Learner,
    LossTerm,
    NoOptions,
    Optimizer,
    Outcomes,
    RlaxError,
    RunFiles,
    Section,
    SignalChain,
    TrainingError,
    chosen_signals,
    hookimpl,
    needed_signals,
    of_batch,
    resolve,
)
from rlax_plugin.build import registry_for
from rlax_plugin.testing import FakeTrainerPort, make_arrays, make_batch, make_group, policy
from rlax_plugin.testing.model import BigramView
from rlax_plugin.training.objective.terms import reported

# A learning rate against the sign of the gradient, nearly: b1 = b2 = 0.
SIGN = Optimizer(learning_rate=0.25, b1=0.0, b2=0.0, epsilon=1e-12)


class HeadConfig(Section):
    optimizer: Optimizer = SIGN


class Head(BatchSignal):
    """V = features @ w, regressed on the rewards to go; a linear critic without a bias."""

    arrays = {"rl_values": ADVANTAGE_INPUTS["rl_values"]}  # noqa: RUF012

    def __init__(self, config):
        self._config = config

    def start(self, model):
        (width,) = model.outputs["features"].trailing
        self.learner = Learner(self._config.optimizer, {"w": np.zeros(width)})

    def complete(self, model, step, batch):
        features = model.forward(batch, "features")["features"]
        return {"rl_values": features.astype(np.float64) @ self.learner.params["w"]}

    def learn(self, model, step, batch):
        returns_bt = of_batch(lambda outcomes: outcomes.returns_nt, batch)
        trained_bt = batch["rl_mask"] > 0
        error_bt = np.where(trained_bt, batch["rl_values"] - returns_bt, 0.0)
        gradient = 0
        for part in model.parts(batch, ["features"]):
            features_bte = part.outputs["features"].astype(np.float64)
            gradient += np.einsum("bt,bte->e", error_bt[part.rows], features_bte)
        self.learner.update({"w": gradient / trained_bt.sum()})
        self.metrics = {"objective/value_loss": ((error_bt**2).sum(), trained_bt.sum())}

    def save(self, step, state):
        self.learner.save(state)

    def restore(self, step, state):
        self.learner.restore(state)


class Distilled(BatchSignal):
    terms = {"distilled": LossTerm(lambda outputs, data: 0.0, lambda data: 1.0)}  # noqa: RUF012


@hookimpl
def rlax_register_signal():
    return {
        "head": Extension(HeadConfig, lambda config, context: Head(config)),
        "distilled": Extension(NoOptions, lambda config, context: Distilled()),
        "nothing": Extension(NoOptions, lambda config, context: object()),
        "plain": Extension(NoOptions, lambda config, context: BatchSignal()),
    }


PLUGIN = "learning_signals"


@pytest.fixture(autouse=True)
def plugin(monkeypatch):
    module = ModuleType(PLUGIN)
    module.rlax_register_signal = rlax_register_signal
    module.__spec__ = sys.modules[__name__].__spec__
    monkeypatch.setitem(sys.modules, PLUGIN, module)


context_of = partial(toy_context, plugins=(PLUGIN,))


def trainer_of(directory: Path, *signals, steps=4, **options):
    advantage = {"name": "gae", **options}
    context = context_of(directory, *signals, objective={"advantage": advantage}, steps=steps)
    return context.part("trainer", context.section.trainer, "rlax.trainer")


WHITEN = {"whiten_over": "none"}


def train(directory, *signals, port=None, **options):
    port = port or FakeTrainerPort()
    trainer_of(directory, *signals, **options).run(port)
    port.close()
    return port


def two_samples():
    """Rewards 1 and 0, two tokens each."""
    return make_arrays(make_batch(1, [make_group((1.0, 0.0), lengths=(2, 2))]), length=5)


def test_two_steps_of_the_head_by_hand(tmp_path):
    batch = two_samples()
    trained_bt = batch["rl_mask"] > 0
    batch["inputs"][trained_bt] = [3, 4, 5, 6]
    weights = {name: np.zeros(shape, np.float32) for name, shape in policy.SHAPES.items()}
    for token, column, value in ((3, 0, 1.0), (4, 1, 2.0), (5, 0, -1.0), (6, 1, 4.0)):
        weights["table"][token, column] = value  # a token's row is its features
    head = Head(HeadConfig())
    chain = SignalChain(
        {"head": head},
        RunFiles(tmp_path),
        lambda outcomes: outcomes.returns_nt - outcomes.values_nt,
        checkpoints=tuple,
    )
    model = BigramView(weights, 0, 1.0, part_rows=1)
    chain.start(model, 0)
    # Every value is 0: the advantages are the rewards.
    first = chain.complete(model, 1, batch)
    np.testing.assert_array_equal(first["rl_advantages"][trained_bt], [1, 1, 0, 0])
    assert reported(chain.metrics)["objective/value_loss"] == 2.0 / 4
    # Gradients -1/4 and -2/4 of the two coordinates: each goes up by .25.
    np.testing.assert_allclose(head.learner.params["w"][:3], [0.25, 0.25, 0])
    second = chain.complete(model, 2, batch)
    np.testing.assert_allclose(second["rl_values"][trained_bt], [0.25, 0.5, -0.25, 1.0])
    np.testing.assert_allclose(second["rl_advantages"][trained_bt], [0.75, 0.5, 0.25, -1.0])
    expected = (0.5625 + 0.25 + 0.0625 + 1) / 4
    assert reported(chain.metrics)["objective/value_loss"] == pytest.approx(expected)
    assert chain.metrics["objective/advantage"] == pytest.approx(0.5)
    # Gradients (-.75 + .25) / 4 and (-.5 * 2 + 4) / 4: one goes up, the other down.
    np.testing.assert_allclose(head.learner.params["w"][:3], [0.5, 0, 0], atol=1e-9)


def test_a_critic_learns_beside_the_policy_and_its_values_make_the_advantages(tmp_path):
    frozen = {"name": "head", "optimizer": SIGN.model_dump() | {"learning_rate": 1e-12}}
    learns, stays = (
        train(tmp_path / name, head, steps=3, **WHITEN)
        for name, head in (("learns", "head"), ("stays", frozen))
    )

    first, _, last = (reported(learns.metrics[s])["objective/value_loss"] for s in (1, 2, 3))
    assert 0 < last < first
    # Every value is 0 at first.
    one, *later = [learns.metrics[step]["objective/advantage"] for step in (1, 2, 3)]
    same, *others = [stays.metrics[step]["objective/advantage"] for step in (1, 2, 3)]
    assert one == same and np.abs(np.subtract(later, others)).min() > 1e-2


def test_a_killed_run_goes_on_with_the_bits_of_an_undisturbed_one(tmp_path):
    whole = train(tmp_path / "a", "head", steps=6, **WHITEN)
    train(tmp_path / "b", "head", steps=6, port=FakeTrainerPort(stop_after=3), **WHITEN)
    parts = train(tmp_path / "b", "head", steps=6, **WHITEN)
    for name, array in whole.published[6].items():
        assert array.tobytes() == parts.published[6][name].tobytes()
    state = "run/signals/00000006/head/learner.npz"
    assert (tmp_path / "a" / state).read_bytes() == (tmp_path / "b" / state).read_bytes()
    (tmp_path / "b" / state).unlink()
    with pytest.raises(TrainingError, match=r"signals/00000006/head/learner\.npz is missing"):
        train(tmp_path / "b", "head", steps=7, **WHITEN)


def test_what_the_objective_needs_runs_first_with_the_options_of_the_list(tmp_path):
    objective = {"kl": {"coefficient": 0.1}, "old_policy": "proximal", "epochs": 2}
    listed = ("head", {"name": "reference", "offload": True})
    context = context_of(tmp_path, *listed, objective=objective)
    slots = resolve(context.section, context.part)
    assert needed_signals(slots) == ("reference", "old_policy")
    needed = needed_signals(slots)
    found = chosen_signals(context, slots.advantages, needed)
    assert list(found) == ["reference", "old_policy", "head"]
    assert found["reference"]._offload and not found["old_policy"]._offload


def test_an_old_policy_without_effect_is_rejected(tmp_path):
    context = context_of(tmp_path, "old_policy", objective={})
    with pytest.raises(ConfigError, match="must not list old_policy: the loss has its log-probs"):
        registry_for(context.section).check_start(context.section, context)


def test_a_listed_reference_needs_no_kl_and_may_have_a_path(tmp_path):
    objective = {"reference": {"path": str(tmp_path)}}
    context = context_of(tmp_path, "reference", objective=objective)
    slots = resolve(context.section, context.part)
    (signal,) = chosen_signals(context, slots.advantages).values()
    assert list(signal.arrays) == ["rl_reference_logprobs"]
    with pytest.raises(
        ConfigError, match=r"reference\.path = .*has no effect while rlax\.objective"
    ):
        context = context_of(tmp_path, objective=objective)
        resolve(context.section, context.part)


def test_recorded_advantages_are_those_without_values():
    slots = resolve_with(lists_signals=True)
    outcomes = Outcomes(np.array([8.0, 4.0]), np.array([3, 1]), np.array([0, 0]))
    # Values 0 and lambda 1/2: 2, 4, 8 of the first sample, whose mean is 14/3.
    np.testing.assert_allclose(slots.recorded_advantages(outcomes), [14 / 3, 4.0])
    with pytest.raises(ConfigError, match="must be 1 without the values of a critic"):
        resolve_with(lists_signals=False).recorded_advantages(outcomes)


def resolve_with(lists_signals):
    gae = {"name": "gae", "lam": 0.5, **WHITEN}
    signals = ["head"] if lists_signals else []
    context = context_of(Path("unused"), *signals, objective={"advantage": gae}, made=False)
    return resolve(context.section, context.part)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (["head", "head"], r"rlax\.signals = .*must name 'head' once"),
        (["head", f"{PLUGIN}:head"], r"rlax\.signals = .*must name 'head' once"),
        (["haed"], r"rlax\.signals\.0\.name = 'haed': .*did you mean 'head'\?"),
        ([{"name": "head", "optimizer": {"rate": 1}}], r"rlax\.signals\.0\.optimizer\.rate"),
        (
            ["nothing"],
            r"rlax\.signals\.0: signal 'nothing' built .* expected an instance of a subc",
        ),
        (["distilled"], r"rlax\.signals = .*add \['distilled'\] to the loss, which trainer bigram"),
    ],
)
def test_what_does_not_go_is_told_when_the_trainer_is_built(tmp_path, signals, expected):
    with pytest.raises(RlaxError, match=expected):
        trainer_of(tmp_path, *signals, **WHITEN)
