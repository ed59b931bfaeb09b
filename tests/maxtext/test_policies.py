"""Log-probs under older weights and the reference: one run of three steps, and its resumption."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compilations
from flax import nnx
from rlax_maxtext.batch_signals import signals_of
from rlax_maxtext.model_view import MaxTextView
from rlax_maxtext.policies import OldPolicy, ReferencePolicy

from maxtext_overrides.config import loading as rlax_config
from maxtext_overrides.trainer.train_loop import Events, fresh_weights, run_train_loop
from maxtext_overrides.variables import restore
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config import KL, Algorithm, RlaxSection
from rlax_plugin.config.loading import resolve as resolve_config
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.training.objective.batches import ARRAYS, HOST_ARRAYS
from rlax_plugin.training.objective.loss import ObjectiveSlots, make_loss
from rlax_plugin.training.objective.terms import reported

TINY = str(Path(__file__).with_name("tiny.yml"))
ROWS, LENGTH, VOCAB = 8, 16, 64
TEMPERATURE = 0.7
FIRST_TRAINED = 12  # of 16 positions
ABOVE_REFERENCE = 0.5  # nats that the sampler's log-probs lie above the reference's


def batch(step):
    """Random tokens, the last four of each row trained; rows of staleness 1, 2, 3 in turn."""
    rng = np.random.default_rng(step)
    specs = ARRAYS | HOST_ARRAYS
    arrays = {name: spec.zeros(ROWS, LENGTH) for name, spec in specs.items()}
    for side in ("inputs", "targets"):
        arrays[side][:] = rng.integers(0, VOCAB, (ROWS, LENGTH))
        arrays[f"{side}_position"][:] = np.arange(LENGTH)
        arrays[f"{side}_segmentation"][:] = 1
    trained = arrays["rl_mask"][:, FIRST_TRAINED:]
    trained[:] = 1
    arrays["rl_advantages"] += rng.normal(size=(ROWS, 1)) * arrays["rl_mask"]
    arrays["rl_staleness"][:] = (np.arange(ROWS)[:, None] % 3 + 1) * arrays["rl_mask"]
    arrays["rl_group"][:] = (np.arange(ROWS)[:, None] // 4 + 1) * arrays["rl_mask"]
    arrays["rl_episode"][:] = (np.arange(ROWS)[:, None] + 1) * arrays["rl_mask"]
    arrays["rl_place"][:] = np.cumsum(arrays["rl_mask"], axis=1) * arrays["rl_mask"]
    arrays["rl_rewards"][:] = np.arange(ROWS)[:, None] * arrays["rl_mask"]
    return arrays


def slots(updates_per_step=1, **algorithm):
    """REINFORCE: the advantage is all that a sample was paid."""
    return ObjectiveSlots(
        aggregation=lambda inputs: (inputs.mask_bt, inputs.mask_bt.sum()),
        advantages=lambda outcomes: outcomes.totals_n,
        importance_weight=lambda inputs: jnp.ones_like(inputs.mask_bt),
        grad_1=lambda inputs: inputs.logprobs_bt,
        grad_2=lambda inputs: jnp.zeros_like(inputs.mask_bt),
        corrections=(),
        algorithm=Algorithm(**algorithm),
        updates_per_step=updates_per_step,
        max_staleness=3,
    )


def section(*signals, **objective):
    return RlaxSection(
        prompt_source={"name": "none"},
        rewards=({"name": "none"},),
        rollouts={"temperature": TEMPERATURE, "group_size": 4, "groups_per_step": 2},
        staleness={"reload_every": 2, "max_staleness": 3},
        objective=objective,
        signals=signals,
    )


IN_LOSS = slots(old_policy="reprefill", kl=KL(coefficient=0.1))
KL_REWARD = KL(coefficient=0.1, estimator="k1", placement="reward")
IN_REWARD = slots(2, old_policy="proximal", kl=KL_REWARD)
REPREFILL = slots(2, old_policy="reprefill")


def chain_of(slots, section, directory):
    """The chain of a run whose objective is not of the config."""

    def part(kind, choice, key):
        assert kind == "signal" and key.startswith("rlax.signals")
        offload = bool(choice.options)
        if choice.name == "reference":
            path = section.objective.reference.path
            return ReferencePolicy(slots, path, RunFiles(str(directory)), offload=offload)
        return OldPolicy(slots, section.staleness.reload_every, offload=offload)

    context = BuildContext(Path(directory), 0, section, run_url=str(directory), part=part)
    return signals_of(context, slots, lambda: ())


def policies(directory):
    """Three that differ in all they can; what only one of them needs is kept by that one only."""

    def policies_of(slots, name, *offloaded, **objective):
        listed = [{"name": signal, "offload": True} for signal in offloaded]
        return chain_of(slots, section(*listed, **objective), f"{directory}/{name}")

    return {
        "in_loss": policies_of(IN_LOSS, "in_loss"),
        "in_reward": policies_of(IN_REWARD, "in_reward", "reference", epochs=2),
        "reprefill": policies_of(REPREFILL, "none", "old_policy", epochs=2),
    }


def compiled_logits(graph):
    def logits_btv(model_state, data):
        return nnx.merge(graph, model_state, copy=True)(
            decoder_input_tokens=data["inputs"],
            decoder_positions=data["inputs_position"],
            decoder_segment_ids=data["inputs_segmentation"],
            enable_dropout=False,
        )

    return jax.jit(logits_btv)


def logprobs(run_, weights, data):
    """log softmax of the model's own logits for the whole batch at once, in float64."""
    data = {name: data[name] for name in ARRAYS}
    with run_.loop.shardings():
        logits_btv = run_.logits(restore(run_.loop.model_state, weights), data)
    scaled_btv = np.asarray(logits_btv, np.float64) / TEMPERATURE
    log_z_bt = np.log(np.exp(scaled_btv).sum(-1))
    return np.take_along_axis(scaled_btv, data["targets"][..., None], -1)[..., 0] - log_z_bt


def run(tmp_path, on_start, stop_after, weights):
    """Trains with KL in the loss; ``weights`` receives version -> copy.

    Returns:
      step -> name of the policies -> completed batch, their metrics, and the loop's metrics.
    """
    config = rlax_config.initialize(
        resolve_config(TINY, [f"rlax.rollouts.temperature={TEMPERATURE}"]),
        base_output_directory=str(tmp_path),
        enable_checkpointing=True,
        per_device_batch_size=4,
        gradient_accumulation_steps=2,  # the batch is scored in two parts
        steps=4,
    )
    found = SimpleNamespace(batches={}, reported={}, metrics={})
    every, found.model = policies(tmp_path), MaxTextView(config, TEMPERATURE)

    def start(loop):
        found.loop, found.logits = loop, compiled_logits(loop.graph)
        weights[loop.completed] = fresh_weights(loop)
        found.model.show(loop)
        for each in every.values():
            each.start(found.model, loop.completed)
        on_start(loop, found.model)

    def batches(step):
        data = batch(step)
        reference_bt = logprobs(found, weights[0], data)
        behaviour_bt = (reference_bt + ABOVE_REFERENCE) * data["rl_mask"]
        data["rl_behaviour_logprobs"] = behaviour_bt.astype(np.float32)
        found.model.show(found.loop)
        found.batches[step] = {n: p.complete(found.model, step, data) for n, p in every.items()}
        if step == 2:
            found.outputs = found.model.forward(data, "features", "logprobs", "entropy")
        found.reported[step] = {name: p.metrics for name, p in every.items()}
        return found.batches[step]["in_loss"]

    def on_step_end(loop, metrics):
        weights[loop.completed] = fresh_weights(loop)
        found.metrics[loop.completed] = jax.device_get(metrics)

    events = Events(
        batches=batches,
        on_step_end=on_step_end,
        decide=lambda step: (step == stop_after,) * 2,
        on_start=start,
    )
    arrays = ARRAYS | every["in_loss"].device_arrays
    with compilations() as found.compiled:
        run_train_loop(config, events, arrays=arrays, objective=make_loss(IN_LOSS))
    return found


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("policies")


@pytest.fixture(scope="module")
def weights():
    return {}


@pytest.fixture(scope="module")
def three_steps(tmp, weights):
    (tmp / "in_loss" / "reference").mkdir(parents=True)  # as a killed start may leave it
    (tmp / "in_loss" / "reference" / "half").write_text("written")
    return run(tmp, lambda loop, model: None, 3, weights)


@pytest.fixture(scope="module")
def resumed(tmp, weights, three_steps):
    rejections = {}

    def rejected(loop, model):
        def start(name, directory, loop=loop, **reference):
            model.show(loop)
            with pytest.raises(ConfigError) as error:
                chain = chain_of(IN_LOSS, section(reference=reference), directory)
                chain.start(model, loop.completed)
            rejections[name] = str(error.value)

        start("absent", tmp / "elsewhere")
        start("nowhere", tmp, path=str(tmp / "nowhere"))
        doubled = jax.tree.map(lambda a: jnp.stack([a, a]), loop.model_state)
        other_model = dataclasses.replace(loop, model_state=doubled)
        start("shapes", tmp, other_model, path=str(tmp / "in_loss" / "reference"))

    later = run(tmp, rejected, 4, weights)
    later.rejections = rejections
    return later


def close(found, expected, where):
    np.testing.assert_allclose(found[where], expected[where], rtol=1e-6, atol=1e-6)


def test_each_adds_what_its_objective_reads(three_steps):
    added = {n: set(b) - set(ARRAYS | HOST_ARRAYS) for n, b in three_steps.batches[1].items()}
    old = {"rl_old_logprobs", "rl_old_known"}
    assert added == {
        "in_loss": old | {"rl_reference_logprobs"},
        "in_reward": old | {"rl_token_rewards"},  # read on the host
        "reprefill": old,
    }
    # The signals of a batch share one program, for any weights and both parts of the batch.
    # Another one gives all that a signal asked for at step 2.
    assert sum("outputs_of_batch" in name for name in three_steps.compiled) == 2


def test_the_models_outputs_are_those_of_its_own_graph(three_steps, weights):
    data, found = three_steps.batches[2]["in_loss"], three_steps.outputs
    everywhere = np.ones((ROWS, LENGTH), bool)
    close(found["logprobs"], logprobs(three_steps, weights[1], data), everywhere)
    # The output head: features times the tied embedding, over the root of its width.
    table_ve = np.asarray(weights[1]["token_embedder.embedding"], np.float64)
    logits_btv = found["features"].astype(np.float64) @ table_ve.T / np.sqrt(table_ve.shape[1])
    scaled_btv = logits_btv / TEMPERATURE
    log_p_btv = scaled_btv - np.log(np.exp(scaled_btv).sum(-1, keepdims=True))
    chosen_bt = np.take_along_axis(log_p_btv, data["targets"][..., None], -1)[..., 0]
    np.testing.assert_allclose(found["logprobs"], chosen_bt, rtol=1e-5, atol=1e-5)
    entropy_bt = -(np.exp(log_p_btv) * log_p_btv).sum(-1)
    np.testing.assert_allclose(found["entropy"], entropy_bt, rtol=1e-5, atol=1e-5)
    for name, spec in three_steps.model.outputs.items():
        assert not spec.mismatch(found[name], ROWS, LENGTH)


def test_reference_stays_what_training_started_from(three_steps, resumed, weights):
    everywhere = np.ones((ROWS, LENGTH), bool)
    for step, run_ in ((1, three_steps), (2, three_steps), (3, three_steps), (4, resumed)):
        data = run_.batches[step]["in_loss"]
        expected_bt = logprobs(run_, weights[0], data)
        close(data["rl_reference_logprobs"], expected_bt, everywhere)
        assert data["rl_reference_logprobs"].dtype == np.float32
        if step > 1:
            moved_bt = logprobs(run_, weights[step - 1], data) - expected_bt
            assert np.abs(moved_bt).max() > 0.01
    kl = [run_.metrics[s] for s, run_ in ((1, three_steps), (2, three_steps), (4, resumed))]
    kl = [metrics["objective/reference_kl_k3"] for metrics in kl]
    assert kl[0] == 0 and min(kl[1:]) > 1


def test_kl_in_the_reward_is_taken_from_advantages(three_steps, resumed):
    # 4 trained tokens, each 0.5 nats above the reference: k1 sums to 2 in each row, times beta 0.1.
    # The rewards are 0 .. 7, and the advantage is all that a sample was paid.
    expected = (np.arange(ROWS)[:, None] - 0.2) * batch(1)["rl_mask"]
    for step, run_ in ((1, three_steps), (3, three_steps), (4, resumed)):
        found = run_.batches[step]["in_reward"]["rl_advantages"]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
        # k3 = exp(-0.5) + 0.5 - 1 = 0.1065307.
        sums = run_.reported[step]["in_reward"]
        means = reported(sums)
        assert means["objective/reference_kl_k1"] == pytest.approx(0.5, rel=1e-5)
        assert means["objective/reference_kl_k3"] == pytest.approx(0.1065307, rel=1e-5)
        # 4 tokens a row, twice: rows 0 .. 7 less 0.2 sum to 26.4, and to 26.8 without signs.
        assert sums["objective/advantage"] == pytest.approx(8 * 26.4, rel=1e-5)
        assert sums["objective/advantage_abs"] == pytest.approx(8 * 26.8, rel=1e-5)
        # Where the loss has the reference, advantages stay those of the recorded batch.
        recorded_bt = run_.batches[step]["in_loss"]["rl_advantages"]
        np.testing.assert_array_equal(recorded_bt, batch(step)["rl_advantages"])
        assert "objective/advantage" not in run_.reported[step]["in_loss"]


def test_proximal_is_the_policy_before_the_first_update(three_steps, weights):
    for step in (1, 2, 3):
        data = three_steps.batches[step]["in_reward"]
        trained_bt = data["rl_mask"] > 0
        np.testing.assert_array_equal(data["rl_old_known"], data["rl_mask"])
        expected_bt = logprobs(three_steps, weights[step - 1], data)
        close(data["rl_old_logprobs"], expected_bt, trained_bt)


# Workers reload versions 0 and 2. Step -> version kept when its batch comes.
RETAINED = {1: None, 2: 0, 3: 0}


@pytest.mark.parametrize("step", RETAINED)
def test_reprefill_takes_each_tokens_own_version(three_steps, weights, step):
    for name, updates in (("in_loss", 1), ("reprefill", 2)):
        data = three_steps.batches[step][name]
        trained_bt = data["rl_mask"] > 0
        version_bt = step - data["rl_staleness"]
        retained_bt = trained_bt & (version_bt == RETAINED[step])
        known_bt = trained_bt if updates == 2 else retained_bt
        np.testing.assert_array_equal(data["rl_old_known"], known_bt)
        assert not data["rl_old_logprobs"][~known_bt].any()
        if retained_bt.any():
            expected_bt = logprobs(three_steps, weights[RETAINED[step]], data)
            close(data["rl_old_logprobs"], expected_bt, retained_bt)
        proximal_bt = logprobs(three_steps, weights[step - 1], data)
        close(data["rl_old_logprobs"], proximal_bt, known_bt & ~retained_bt)
        missed = (trained_bt & (version_bt < step - 1) & ~retained_bt).sum()
        told = reported(three_steps.reported[step][name])["objective/reprefill_missed"]
        assert told == pytest.approx(missed / trained_bt.sum())
    # Rows 0 3 6 are of staleness 1, rows 1 4 7 of 2, rows 2 5 of 3.
    rows_retained = {1: 0, 2: 3, 3: 2}[step]
    assert retained_bt.sum() == rows_retained * 4


def test_resumed_run_counts_the_copy_it_lost(resumed, weights):
    # Version 2 would be kept; after a resume at step 4 it is not: rows 1 2 4 5 7 are proximal.
    data = resumed.batches[4]["reprefill"]
    told = reported(resumed.reported[4]["reprefill"])["objective/reprefill_missed"]
    assert told == pytest.approx(5 * 4 / (data["rl_mask"] > 0).sum())
    expected_bt = logprobs(resumed, weights[3], data)
    close(data["rl_old_logprobs"], expected_bt, data["rl_mask"] > 0)


def test_loss_gives_a_ratio_of_one_to_the_current_policys_tokens(three_steps):
    # Staleness 1 is not "known" with one update; step 1 has nothing else that is.
    assert not three_steps.batches[1]["in_loss"]["rl_old_known"].any()
    assert three_steps.metrics[1]["objective/ratio"] == 32
    assert three_steps.metrics[2]["objective/ratio"] != 32


def test_reference_that_cannot_be_used_is_a_config_error(resumed, tmp):
    key = "rlax.objective.reference.path = "
    assert all(text.startswith(key) for text in resumed.rejections.values())
    assert "must be set: this run did not store" in resumed.rejections["absent"]
    assert str(tmp / "nowhere") in resumed.rejections["nowhere"]
    assert "but the model expects (2, " in resumed.rejections["shapes"]
