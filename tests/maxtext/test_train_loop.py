"""MaxText's stock train_loop under our extension points, with models of 2 layers."""

import itertools

import numpy as np
import pytest
from tiny_loop import LENGTH, ROWS, Recorder, batch, configure, policy_gradient, train

from maxtext_overrides.config import loading as rlax_config
from maxtext_overrides.trainer import loss
from maxtext_overrides.trainer.train_loop import OVERRIDES, Events, run_train_loop
from maxtext_overrides.upstream import lean_imports
from maxtext_overrides.upstream.override import OverrideError
from rlax_plugin.base.errors import TrainingError, WorkerError
from rlax_plugin.training.objective.batches import ARRAYS


def stock_symbols():
    lean_imports.import_trainer()
    from maxtext_overrides.upstream.override import resolve

    return [resolve(o.symbol)[2] for o in OVERRIDES + loss.OVERRIDES + rlax_config.OVERRIDES]


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    before = stock_symbols()
    recorder = train(tmp_path_factory.mktemp("rl"), recorder=Recorder(looks=True))
    recorder.restored = before == stock_symbols()
    return recorder


def test_stock_loop_trains_with_the_objective(three_steps):
    calls = [("start", 0)] + [c for s in (1, 2, 3) for c in (("batch", s), ("end", s))]
    assert three_steps.calls == calls
    for step in (1, 2, 3):
        data, metrics = batch(step), three_steps.metrics[step]
        assert metrics["tokens"] == metrics["learning/total_weights"] == data["rl_mask"].sum() == 36
    assert three_steps.restored


def test_loss_is_what_numpy_computes_from_the_logits(three_steps):
    data, logits = batch(1), three_steps.first_logits.astype(np.float64)
    log_z = np.log(np.exp(logits).sum(-1))
    targets = np.take_along_axis(logits, data["targets"][..., None], -1)[..., 0]
    logprobs = (targets - log_z) * data["rl_mask"]
    metrics = three_steps.metrics[1]
    assert metrics["logprob_sum"] == pytest.approx(logprobs.sum(), rel=1e-5)
    expected = -(logprobs * data["rl_advantages"]).sum() / 36
    assert metrics["learning/loss"] == pytest.approx(expected, rel=1e-5)


def test_published_weights_survive_the_donation_of_the_next_step(three_steps):
    name = next(n for n in three_steps.weights[0] if n.endswith("wi_0.kernel"))
    versions = [np.asarray(three_steps.weights[v][name]) for v in (0, 1, 2, 3)]
    for old, new in itertools.pairwise(versions):
        assert 1e-4 < np.abs(new - old).max() < 0.1  # Adam moves by about the learning rate
    assert not any("rngs" in n or "cache" in n for n in three_steps.weights[0])


def test_canary_is_of_the_version_it_is_published_with(three_steps):
    tokens, logits = batch(1)["inputs"][0], three_steps.first_logits[0].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = logprobs[np.arange(LENGTH - 1), tokens[1:]]
    found = [np.asarray(three_steps.canaries[version].logprobs) for version in (0, 1, 2, 3)]
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    for old, new in itertools.pairwise(found):
        assert np.abs(new - old).max() > 1e-3  # the update's work


def test_data_error_is_what_the_loop_ends_with(tmp_path):
    before = stock_symbols()

    def broken(step):
        if step == 2:
            raise WorkerError("no batch will come")
        return batch(step)

    recorder = Recorder(batches=broken)
    with pytest.raises(WorkerError, match="no batch will come"):
        train(tmp_path, recorder=recorder)
    assert recorder.calls[-1] == ("batch", 2)
    assert before == stock_symbols()


def test_wrong_batch_names_the_array(tmp_path):
    def cut(step):
        return batch(step) | {"rl_mask": np.zeros((ROWS, LENGTH), np.float32)}

    with pytest.raises(TrainingError, match=r"batch of step 1: rl_mask is float32\[8, 16\], expe"):
        train(tmp_path, recorder=Recorder(batches=cut))


def test_checkpoint_resume_and_stop(tmp_path, three_steps):
    saving = {"enable_checkpointing": True, "async_checkpointing": True}
    first = train(tmp_path, recorder=Recorder(stop_after=2), **saving)
    assert first.calls[-2:] == [("end", 2), ("checkpoint", 2)]
    labels = [p.name for p in (tmp_path / "tiny" / "checkpoints").iterdir() if p.name.isdigit()]
    assert labels == ["1"]  # MaxText counts from 0

    second = train(tmp_path, **saving)
    assert second.calls == [("start", 2), ("batch", 3), ("end", 3), ("checkpoint", 3)]
    for name, value in three_steps.weights[3].items():  # as if it had never stopped
        np.testing.assert_array_equal(second.weights[3][name], value, err_msg=name)
        np.testing.assert_array_equal(second.weights[2][name], three_steps.weights[2][name])

    third = train(tmp_path, **saving)  # as after a kill behind the last checkpoint
    assert third.calls == [("start", 3)] and third.loop.completed == 3
    for name, value in three_steps.weights[3].items():
        np.testing.assert_array_equal(third.weights[3][name], value, err_msg=name)


def test_error_before_a_checkpoint_is_not_wrapped(tmp_path):
    recorder = Recorder()

    def reject(step):
        raise WorkerError(f"snapshot of {step} failed")

    events = Events(
        batches=recorder.batches, on_step_end=recorder.on_step_end, before_checkpoint=reject
    )
    config = configure(tmp_path, enable_checkpointing=True, checkpoint_period=1)
    with pytest.raises(WorkerError, match="snapshot of 2 failed"):
        run_train_loop(config, events, arrays=ARRAYS, objective=policy_gradient)


def test_mixture_of_experts_keeps_its_load_balance_loss(tmp_path):
    moe = {
        "decoder_block": "mixtral",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "base_moe_mlp_dim": 64,
        "load_balance_loss_weight": 0.5,
        "sparse_matmul": False,
        "megablox": False,
        "steps": 2,
        "gradient_clipping_threshold": 0.0,
    }

    def without_advantages_at_first(step):
        arrays = batch(step)
        return arrays | {"rl_advantages": arrays["rl_advantages"] * (step > 1)}

    run = train(tmp_path, recorder=Recorder(batches=without_advantages_at_first), **moe)
    for step in (1, 2):
        found = run.metrics[step]
        assert found["learning/moe_lb_loss"] > 0.1
        assert found["learning/loss"] == pytest.approx(
            found["learning/lm_loss"] + found["learning/moe_lb_loss"], rel=1e-5
        )
    assert run.metrics[2]["learning/lm_loss"] != 0
    # With a loss of zero, what is left of the gradient is the load balance loss's.
    assert run.metrics[1]["learning/lm_loss"] == 0
    assert run.metrics[1]["learning/grad_norm"] > 1e-3
    router = next(n for n in run.weights[0] if "gate" in n)
    assert np.abs(run.weights[1][router] - run.weights[0][router]).max() > 1e-3


def test_another_source_upstream_is_rejected_unless_allowed(tmp_path, monkeypatch):
    module = lean_imports.import_trainer()
    stock = module.record_activation_metrics
    monkeypatch.setattr(
        module, "record_activation_metrics", lambda output_metrics, outputs, config: None
    )
    with pytest.raises(OverrideError, match="record_activation_metrics has another source"):
        train(tmp_path, steps=1)
    assert module.record_activation_metrics is not stock
    recorder = train(tmp_path, "rlax.trainer.allow_untested=true", steps=1)
    assert recorder.calls[-1] == ("end", 1)
