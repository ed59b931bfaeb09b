"""MaxText's stock train_loop under our extension points, with models of 2 layers."""

import dataclasses
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax_jetstream
import rlax_maxtext
from flax import nnx
from rlax_maxtext import supervised
from rlax_maxtext.canary import CanaryForward
from typer.testing import CliRunner

from maxtext_overrides.config import loading as rlax_config
from maxtext_overrides.trainer import loss
from maxtext_overrides.trainer.train_loop import (
    MAXTEXT_ARRAYS,
    OVERRIDES,
    Events,
    fresh_weights,
    run_train_loop,
)
from maxtext_overrides.upstream import lean_imports
from maxtext_overrides.upstream.signatures import OverrideError
from maxtext_overrides.variables import published
from rlax_plugin.api import NoOptions
from rlax_plugin.build import registry_for
from rlax_plugin.cli import app
from rlax_plugin.errors import ConfigError, TrainingError, WorkerError
from rlax_plugin.objective import diagnostics
from rlax_plugin.objective.batches import ARRAYS
from rlax_plugin.ports.protocols import BuildContext, CheckpointReader
from rlax_plugin.types import Prompt

TINY = str(Path(__file__).with_name("tiny.yml"))
ROWS, LENGTH, VOCAB = 8, 16, 64


def configure(tmp_path, *argv, **overrides):
    return rlax_config.initialize((TINY, *argv), base_output_directory=str(tmp_path), **overrides)


def batch(step, rows=ROWS, length=LENGTH):
    """Random tokens; row r trains on its last r + 1 targets: the halves differ in weight."""
    rng = np.random.default_rng(step)
    arrays = {name: np.zeros((rows, length), dtype) for name, dtype in ARRAYS.items()}
    arrays["inputs"][:] = rng.integers(0, VOCAB, (rows, length))
    arrays["targets"][:] = rng.integers(0, VOCAB, (rows, length))
    for side in ("inputs", "targets"):
        arrays[f"{side}_position"][:] = np.arange(length)
        arrays[f"{side}_segmentation"][:] = 1
    arrays["rl_mask"][:] = np.arange(length) >= length - 1 - np.arange(rows)[:, None]
    arrays["rl_advantages"][:] = rng.normal(size=(rows, 1))
    return arrays


def policy_gradient(scores, data):
    logprobs_bt = scores.logprobs_bt
    mask_bt = data["rl_mask"].astype(jnp.float32)
    loss_sum = -jnp.sum(logprobs_bt * data["rl_advantages"] * mask_bt)
    metrics = {"tokens": mask_bt.sum(), "logprob_sum": (logprobs_bt * mask_bt).sum()}
    return loss_sum, mask_bt.sum(), metrics


class Recorder:
    """Collects what the loop reports."""

    def __init__(self, stop_after=None, batches=batch):
        self.stop_after, self.batches, self.calls = stop_after, batches, []
        self.weights, self.metrics, self.canaries = {}, {}, {}
        self.canary = CanaryForward(batch(1)["inputs"][0])

    def events(self):
        return Events(
            batches=lambda step: self.calls.append(("batch", step)) or self.batches(step),
            on_step_end=self.on_step_end,
            on_start=self.on_start,
            before_checkpoint=lambda step: self.calls.append(("checkpoint", step)),
        )

    def on_start(self, loop):
        self.publish("start", loop)
        data = self.batches(1)
        with loop.shardings():
            model = nnx.merge(loop.graph, loop.model_state, copy=True)
            self.first_logits = np.asarray(
                model(
                    decoder_input_tokens=data["inputs"],
                    decoder_positions=data["inputs_position"],
                    decoder_segment_ids=data["inputs_segmentation"],
                    enable_dropout=False,
                )
            )

    def publish(self, what, loop):
        self.calls.append((what, loop.completed))
        arrays = self.weights[loop.completed] = fresh_weights(loop)
        self.canaries[loop.completed] = self.canary(loop, arrays)

    def on_step_end(self, loop, metrics):
        self.publish("end", loop)
        self.metrics[loop.completed] = jax.device_get(metrics)
        return loop.completed == self.stop_after


def train(tmp_path, *argv, objective=policy_gradient, arrays=ARRAYS, recorder=None, **overrides):
    recorder = recorder or Recorder()
    config = configure(tmp_path, *argv, **overrides)
    events = recorder.events()
    recorder.loop = run_train_loop(config, events, arrays=arrays, objective=objective)
    return recorder


def stock_symbols():
    lean_imports.import_trainer()
    from maxtext_overrides.upstream.signatures import resolve

    return [resolve(o.symbol)[2] for o in OVERRIDES + loss.OVERRIDES + rlax_config.OVERRIDES]


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    before = stock_symbols()
    recorder = train(tmp_path_factory.mktemp("rl"))
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


def test_gradient_accumulation_is_exact_with_uneven_masks(tmp_path):
    common = {"steps": 1, "gradient_clipping_threshold": 0.0}
    whole = train(tmp_path / "whole", **common)
    parts = train(
        tmp_path / "parts", gradient_accumulation_steps=2, per_device_batch_size=4, **common
    )
    for key in ("learning/loss", "learning/grad_norm", "learning/total_weights", "logprob_sum"):
        assert parts.metrics[1][key] == pytest.approx(whole.metrics[1][key], rel=2e-6), key
    for name, value in whole.weights[1].items():
        # Adam divides by |gradient|: entries near 0 may turn, by at most twice the learning rate.
        np.testing.assert_allclose(parts.weights[1][name], value, atol=1e-4, err_msg=name)


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

    def refuse(step):
        raise WorkerError(f"snapshot of {step} failed")

    events = Events(recorder.batches, recorder.on_step_end, before_checkpoint=refuse)
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
    whole = train(tmp_path / "whole", **moe)
    for step in (1, 2):
        found = whole.metrics[step]
        assert found["learning/moe_lb_loss"] > 0.1
        assert found["learning/loss"] == pytest.approx(
            found["learning/lm_loss"] + found["learning/moe_lb_loss"], rel=1e-5
        )
    router = next(n for n in whole.weights[0] if "gate" in n)
    assert np.abs(whole.weights[2][router] - whole.weights[0][router]).max() > 1e-3

    def nothing(scores, data):
        zero = 0.0 * scores.logprobs_bt.sum()
        return zero, data["rl_mask"].astype(jnp.float32).sum(), {}

    # With a loss of zero, what is left of the gradient is the load balance loss's.
    alone = train(tmp_path / "alone", objective=nothing, **moe)
    assert alone.metrics[1]["learning/grad_norm"] > 1e-3


def test_another_source_upstream_is_refused_unless_allowed(tmp_path, monkeypatch):
    module = lean_imports.import_trainer()
    stock = module.record_activation_metrics
    monkeypatch.setattr(
        module, "record_activation_metrics", lambda output_metrics, outputs, config: None
    )
    with pytest.raises(OverrideError, match="record_activation_metrics has the signature"):
        train(tmp_path, steps=1)
    assert module.record_activation_metrics is not stock
    recorder = train(tmp_path, "rlax.allow_untested_maxtext=true", steps=1)
    assert recorder.calls[-1] == ("end", 1)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("dropout_rate=0.1", "dropout_rate = 0.1: must be 0"),
        ("dataset_type=grain", "dataset_type = 'grain': must not be grain"),
        ("enable_diloco=true", "enable_diloco = True: must be false"),
        ("training_objective=block_diffusion", "training_objective = 'block_diffusion'"),
        ("lora.enable_lora=true", "lora.enable_lora = True"),
        ("per_device_batch_size=0.5", "per_device_batch_size = 0.5"),
        ("rlax.staleness.max_stalenes=2", "max_stalenes = 2: no such key; did you mean 'max_stale"),
        ("rlax.rollouts.group_size=0", "rlax.rollouts.group_size = 0: must be greater than or eq"),
        ("base_emb_dimm=8", "base_emb_dimm = 8: no such key; did you mean 'base_emb_dim'"),
        ("steps=many", "steps = 'many': must be a whole number (Total number of training steps"),
        ("per_device_batch_size=x", "per_device_batch_size = 'x': must be a whole number"),
        ("learning_rate=-1", "learning_rate = -1: must be greater than or equal to 0"),
        ("scan_layers=maybe", "scan_layers = 'maybe': must be true or false"),
        ("mesh_axes=3", "mesh_axes = 3: must be a list"),
        ("dtype=float33", "dtype = 'float33': no such value; did you mean 'float32'? known: bf"),
        ("model_name=llama3.1-8", "model_name = 'llama3.1-8': no such value; did you mean 'llama3"),
        ("attention=flashy", "attention = 'flashy': did you mean 'flash'? known: autoselected"),
        ("attention=flash", "attention = 'flash': must be dot_product with hardware: cpu"),
        ("base_num_query_heads=0", "base_num_query_heads = 0: must be at least 1"),
        ("num_vocab_tiling=3", "num_vocab_tiling = 3: must divide per_device_batch_size * max_t"),
        (
            "ici_fsdp_parallelism=-1 ici_tensor_parallelism=-1",
            "ici_tensor_parallelism = -1: only one of ici_fsdp_parallelism, ici_tensor",
        ),
        (
            "load_parameters_path=/a load_full_state_path=/b",
            "load_parameters_path = '/a': At most one of `load_parameters_path` or",
        ),
        (
            "model_name=llama3.1-8b vocab_size=32",
            "vocab_size = 32: Keys ['vocab_size'] are overridden by both model config and CLI",
        ),
        ("mu_dtype=foo", "mu_dtype = 'foo': data type 'foo' not understood"),
        ("lora.rank=2", "lora.rank = 2: no such key; did you mean 'lora_rank'?"),
        ("dtype=x opt_type=adam", "did you mean 'adamw'? known: adam_pax, adamw, muon, sgd ("),
        ("base_emb_dim=[1", "config = '" + TINY + "': while parsing a flow sequence"),
    ],
)
def test_bad_values_are_config_errors_that_name_the_key(argv, expected):
    with pytest.raises(ConfigError) as error:
        rlax_config.load((TINY, *argv.split()))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_config_reads_the_section_and_the_command_line():
    config = rlax_config.load((TINY, "rlax.staleness.max_staleness=3", "steps=7"), run_name="x")
    assert (config.rlax.staleness.max_staleness, config.steps, config.run_name) == (3, 7, "x")
    assert config.rlax.prompt_source.name == "none"


def test_relative_directories_become_absolute_and_buckets_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = rlax_config.load((TINY, "base_output_directory=runs"))
    assert config.checkpoint_dir == f"{tmp_path}/runs/tiny/checkpoints/"
    config = rlax_config.load((TINY, "base_output_directory=gs://bucket/runs"))
    assert config.checkpoint_dir == "gs://bucket/runs/tiny/checkpoints/"


class FakeLink:
    """A controller that has every batch ready and asks for a stop after one step."""

    canary_tokens = np.array([7, 3, 5, 2, 6], np.int32)

    def __init__(self, stop_after):
        self.stop_after, self.calls, self.metrics, self.weights = stop_after, [], {}, {}

    def next_batch(self, step):
        assert ("publish", step - 1) in self.calls  # or no worker could have drawn it
        self.calls.append(("batch", step))
        return batch(step)

    def publish(self, step, arrays, canary):
        assert all(isinstance(a, jax.Array) for a in arrays.values())
        assert canary.tokens is self.canary_tokens and canary.logprobs.shape == (4,)
        self.weights[step] = jax.device_get(dict(arrays))
        self.calls.append(("publish", step))

    def step_done(self, step, metrics):
        self.metrics[step] = metrics
        self.calls.append(("done", step))

    def before_checkpoint(self, step):
        self.calls.append(("checkpoint", step))

    @property
    def stop_requested(self):
        return ("done", self.stop_after) in self.calls


class Numbers:
    stop_ids = (1,)

    def prompts(self, split):
        return [Prompt("0", np.array([63, 2], np.int32), "0", "0")]


def context_of(argv, run_dir=Path()):
    config = rlax_config.load(argv)
    section = config.rlax
    registry = registry_for(section)

    def part(kind, choice, key):
        if kind == "prompt_source":
            return Numbers()
        return registry.part(kind, choice, key, context)

    url = f"{config.base_output_directory}/{config.run_name}"
    return (context := BuildContext(run_dir, 0, section, argv, url, part=part))


def trainer(argv, run_dir=Path()):
    offer = rlax_maxtext.rlax_register_trainer()["maxtext"]
    return offer.build(NoOptions(), context_of(argv, run_dir))


def test_trainer_plugin_publishes_before_it_asks_and_stops_with_a_checkpoint(tmp_path):
    twice = ("steps=6", "rlax.objective.epochs=2", "rlax.objective.old_policy=proximal")
    reference = ("rlax.objective.kl.coefficient=0.1",)
    where = (f"base_output_directory={tmp_path}", "enable_checkpointing=true")
    argv = (TINY, *where, *twice, *reference)
    link = FakeLink(stop_after=2)
    trainer(argv).run(link)
    assert link.calls == [
        ("publish", 0),
        *[("batch", 1), ("publish", 1), ("done", 1)],
        *[("batch", 2), ("publish", 2), ("done", 2)],
        ("checkpoint", 2),
    ]
    for step in (1, 2):
        report = diagnostics.summarise(link.metrics[step])
        assert report["objective/tokens"] == 2 * 36 and report["objective/sequences"] == 2 * 8
        # The first update of step 1 is at the reference and at pi_old, the second no longer.
        assert report["objective/reference_kl_k3"] > 1e-3
        assert abs(report["objective/ratio"] - 1) > 1e-3
    assert isinstance(link.metrics[2]["learning/grad_norm"], np.ndarray)

    resumed = FakeLink(stop_after=3)
    trainer(argv).run(resumed)
    assert resumed.calls[:2] == [("publish", 2), ("batch", 3)]

    # A checkpoint that is only read, and is not the newest.
    reader, read = trainer(argv, tmp_path / "scratch"), FakeLink(stop_after=0)
    assert isinstance(reader, CheckpointReader) and reader.checkpoints() == {2: "3", 3: "5"}
    reader.publish_checkpoint(read, "3")
    assert read.calls == [("publish", 2)] and read.weights[2].keys() == link.weights[2].keys()
    for name, weights in read.weights[2].items():
        np.testing.assert_array_equal(weights, link.weights[2][name])
    assert any((w != resumed.weights[3][name]).any() for name, w in read.weights[2].items())


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("per_device_batch_size=4", "= 4: times 1 devices, gradient_accumulation_steps = 1 and rl"),
        ("rlax.objective.mini_batches=2", "mini_batches = 2 must be the 8 rows of a batch"),
        ("rlax.objective.mini_batches=4", "groups_per_step * group_size: set it to 2"),
        ("gradient_accumulation_steps=3", "group_size: no number is, so change the rows"),
        ("max_target_length=32", "max_target_length = 32: must be rlax.rollouts.max_prompt_tok"),
    ],
)
def test_trainer_plugin_refuses_a_batch_that_does_not_fit(tmp_path, argv, expected):
    with pytest.raises(ConfigError) as error:
        trainer((TINY, f"base_output_directory={tmp_path}", argv)).run(FakeLink(stop_after=1))
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("max_target_length=32", "max_target_length = 32: must be rlax.rollouts.max_prompt_tok"),
        ("rlax.warm_start.enabled=true", "prompt source 'none' has no answer_tokens"),
        (
            "hardware=gpu attention=cudnn_flash_jax rlax.batches.sequences_per_row=2",
            "attention = 'cudnn_flash_jax': must be another with rlax.batches.sequences_per_row",
        ),
        ("dropout_rate=0.5", "dropout_rate = 0.5: must be 0"),
        ("per_device_batch_size=3", "mini_batches = 1 is 3, of which the 8 rows of a batch"),
        ("vocab_size=63", "vocab_size = 63: must be above 63, the largest token id of rlax.prompt"),
        # Found by building and calling the model, without an array.
        ("base_num_kv_heads=3", "base_num_kv_heads = 3: Invalid num_kv_heads for GQA"),
        ("remat_policy=nonee", "remat_policy = 'nonee': Remat policy needs to be on list"),
        ("mlp_activations=[sillu]", "mlp_activations = ['sillu']: module 'jax.nn' has no attr"),
    ],
)
def test_check_finds_what_maxtext_would_refuse(argv, expected):
    check = rlax_maxtext.rlax_register_trainer()["maxtext"].check
    words = argv.split()
    context = context_of((TINY, *(word for word in words if word.startswith("rlax"))))
    with pytest.raises(ConfigError) as error:
        check(NoOptions(), dataclasses.replace(context, maxtext_argv=(TINY, *words)))
    assert expected in str(error.value)


def test_check_adds_up_what_training_needs():
    argv = (TINY, "gradient_accumulation_steps=2", "per_device_batch_size=2", "opt_type=sgd")
    kl = "rlax.objective.kl.coefficient=0.1"
    facts = rlax_maxtext.rlax_register_trainer()["maxtext"].check(
        NoOptions(), context_of((*argv, kl))
    )
    # Embedding 64 x 32; a layer: attention 4 x 32^2, MLP 3 x 32 x 64, two norms; a norm at the end.
    parameters = 64 * 32 + 2 * (4 * 32**2 + 3 * 32 * 64 + 2 * 32) + 32
    assert f"{parameters:,} parameters" in facts.says["model"]
    assert facts.says["one update"].startswith("8 rows = 2 micro-batch(es) x 2 device(s) x per")
    # Of all devices together, although only one is here.
    assert facts.memory == {
        "parameters": 4 * parameters,
        "optimizer state (sgd)": 4,  # how many updates there were
        "gradients": 2 * 4 * parameters,  # of a micro-batch, and their sum
        "copy that is being published": 4 * parameters,
        "logits of 4 x 16 tokens and their gradient": 2 * 4 * 4 * 16 * 64,
        "reference policy": 4 * parameters,
    }
    doubted = [key for key, _ in facts.warnings]
    assert doubted == ["load_parameters_path", "enable_checkpointing"]


def test_check_adds_up_what_a_worker_needs():
    engine = rlax_jetstream.rlax_register_rollout_engine()["jetstream"]
    context = context_of((TINY, "rlax.rollouts.slots=4"))
    memory = engine.check(engine.config_class(), context).memory
    # Keys and values of 2 layers x 4 slots x 16 tokens x 2 heads x 16, and who holds what place.
    caches = memory["key-value caches of 4 slots"] / (4 * 2 * 2 * 4 * 16 * 2 * 16)
    assert 1 < caches < 1.05
    assert memory["weights"] == memory["new weights, while they are loaded"] == 4 * 22688


def test_init_writes_what_check_accepts_and_explains(tmp_path):
    """The command line, as in docs/getting_started.md, in this process, which has MaxText."""
    file = str(tmp_path / "run.yml")

    def rlax(*arguments):
        return CliRunner().invoke(app, arguments, catch_exceptions=False)

    assert rlax("init", file, "--yes").exit_code == 0
    result = rlax("check", file, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [line.split()[0] for line in found["checked"]] == ["ok", "ok"]
    assert found["numbers"]["epochs"] == pytest.approx(
        320 * 64 / found["numbers"]["training_prompts"]
    )
    assert found["memory_bytes"].keys() == {"rlax.trainer", "rlax.rollouts.engine"}
    assert found["warnings"] == []


def test_what_a_model_sets_otherwise_than_the_file_is_told():
    argv = (TINY, "model_name=qwen3-0.6b")
    found = rlax_config.without_effect(rlax_config.load_to_check(argv), argv)
    assert found["base_emb_dim"] == (32, 1024) and found["vocab_size"] == (64, 151936)
    assert "per_device_batch_size" not in found


class Doubles:
    """ "a" asks for a + 1; a vocabulary of 64."""

    stop_ids, pad_id = (1,), 0

    def prompts(self, split):
        start = {"train": 2, "validation": 2}[split]
        return [
            Prompt(str(n), np.array([63, n], np.int32), str(n), str(n)) for n in range(start, 50)
        ]

    def decode(self, tokens):
        return " ".join(map(str, tokens))

    def answer_tokens(self, prompt):
        return np.array([prompt.tokens[1] + 1, 1], np.int32)


def test_supervised_rows_mark_the_answer():
    arrays = supervised.rows(Doubles(), Doubles().prompts("train")[:1], 5)
    assert arrays["inputs"].tolist() == [[63, 2, 3, 0, 0]]
    assert arrays["targets"].tolist() == [[2, 3, 1, 0, 0]]
    assert arrays["targets_segmentation"].tolist() == [[0, 1, 1, 0, 0]]
    assert arrays["inputs_segmentation"].tolist() == [[1, 1, 1, 0, 0]]


def test_warm_start_stops_in_the_window_and_the_rl_run_starts_from_it(tmp_path):
    window = (
        "rlax.warm_start.pass_at_1_from=0.2",
        "rlax.warm_start.pass_at_1_to=0.9",
    )
    argv = (TINY, f"base_output_directory={tmp_path}", *window)
    looks = []
    path = supervised.warm_start(
        argv, rlax_config.initialize(argv), Doubles(), lambda *look: looks.append(look)
    )
    step, reached = looks[-1]
    assert 0.2 <= reached <= 0.9
    assert all(value < 0.2 for _, value in looks[:-1])
    assert path == str(tmp_path / "tiny" / "warm_start" / "checkpoints" / str(step - 1) / "items")

    # The RL run's first version gives the same pass@1, with a fresh optimizer and step count.
    held_out = supervised.rows(Doubles(), Doubles().prompts("validation")[:16], LENGTH)
    measured = []
    recorder = Recorder()
    events = Events(
        recorder.batches,
        lambda loop, metrics: False,
        on_start=lambda loop: measured.append(
            (loop.completed, supervised.PassAt1(held_out, 1.0)(loop))
        ),
    )
    config = rlax_config.initialize(argv, load_parameters_path=path, steps=1)
    loop = run_train_loop(config, events, arrays=ARRAYS, objective=policy_gradient)
    assert measured == [(0, pytest.approx(reached, rel=1e-5))]
    assert loop.completed == 1
    assert set(published(loop.model_state))

    def again(*more):
        config = rlax_config.initialize((*argv, *more))
        return supervised.warm_start(argv, config, Doubles(), lambda *_: pytest.fail("trained"))

    assert again() == path
    assert again("run_name=b", f"rlax.warm_start.directory={tmp_path}/tiny/warm_start") == path
    with pytest.raises(ConfigError, match="no warm start has ended there"):
        again("run_name=b", f"rlax.warm_start.directory={tmp_path}/b/warm_start")


def test_warm_start_that_overshoots_or_falls_short_is_an_error(tmp_path):
    argv = (TINY, f"base_output_directory={tmp_path}", "rlax.warm_start.steps=2")
    config = rlax_config.initialize(argv)
    with pytest.raises(TrainingError, match=r"after rlax.warm_start.steps = 2, below"):
        supervised.warm_start(argv, config, Doubles())
    argv += ("rlax.warm_start.pass_at_1_from=0", "rlax.warm_start.pass_at_1_to=0")
    config = rlax_config.initialize(argv)
    with pytest.raises(TrainingError, match=r"above rlax.warm_start.pass_at_1_to = 0.0"):
        supervised.warm_start(argv, config, Doubles())


def test_arrays_of_the_supervised_loop_are_maxtexts_own():
    assert set(MAXTEXT_ARRAYS) == {n for n in ARRAYS if not n.startswith("rl_")}
