"""MaxText's trainer as a plug-in: what it publishes and when, and what it rejects."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import rlax_maxtext
from command_line import rlax
from part_stubs import SourceStub
from rlax_maxtext import checking
from tiny_loop import LENGTH, ROWS, TINY, batch

from maxtext_overrides.config import loading as rlax_config
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Descent, Prompt
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import resolve
from rlax_plugin.config.validation import validate
from rlax_plugin.ports.orders import NoFollowers
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.ports.training import Decision
from rlax_plugin.training.objective import diagnostics

# Rows in which two samples share their prompt, and their length.
SHARED = "rlax.batches.sequences_per_row=2 rlax.batches.shared_prompts=true"
LONG = "max_target_length=24"
WINDOW = "attention_type=local_sliding sliding_window_size=4"


class FakePort:
    """A controller that has every batch ready and asks for a stop after some steps."""

    followers = NoFollowers()

    def __init__(self, stop_after, canary=True):
        self.stop_after, self.calls, self.metrics, self.weights = stop_after, [], {}, {}
        self.waited_for = []
        self.damaged: list[str] = []
        # Without tokens there is no canary, which takes seconds to compile.
        self.canary_tokens = np.array([7, 3, 5, 2, 6] if canary else [], np.int32)

    def next_batch(self, step):
        assert ("publish", step - 1) in self.calls  # or no worker could have generated it
        self.calls.append(("batch", step))
        return batch(step) | {"rl_reward_parts": np.zeros((ROWS, LENGTH, 1), np.float32)}

    def publish(self, step, arrays, canary):
        assert all(isinstance(a, jax.Array) for a in arrays.values())
        if self.canary_tokens.size:
            assert canary.tokens is self.canary_tokens and canary.logprobs.shape == (4,)
        self.weights[step] = jax.device_get(dict(arrays))
        self.calls.append(("publish", step))

    def step_done(self, step, metrics):
        self.metrics[step] = metrics
        self.calls.append(("done", step))

    def waits(self, what, typical_s=0.0):
        assert typical_s > 0 and not self.calls  # what comes later is a step's time
        self.waited_for.append(what)

    def found_damaged(self, what):
        self.damaged.append(what)

    def before_checkpoint(self, step):
        self.calls.append(("checkpoint", step))

    def decide(self, step):
        stop = step == self.stop_after
        return Decision(save=stop, stop=stop)


class Numbers(SourceStub):
    def prompts(self, split):
        return [Prompt("0", np.array([63, 2], np.int32), "0", "0")]


def context_of(argv, run_dir=Path()):
    given = resolve(argv[0], argv[1:])
    config = rlax_config.load(given)
    section = config.rlax
    registry = registry_for(section)

    def part(kind, choice, key):
        if kind == "prompt_source":
            return Numbers()
        return registry.part(kind, choice, key, context)

    url = f"{config.base_output_directory}/{config.run_name}"
    return (context := BuildContext(run_dir, 0, section, given, url, part=part))


OFFER = rlax_maxtext.rlax_register_trainer()["maxtext"]


def options_of(context):
    return validate(OFFER.config_class, context.section.trainer.options, "rlax.trainer")


def trainer(argv, run_dir=Path()):
    context = context_of(argv, run_dir)
    return OFFER.build(options_of(context), context)


def saving(directory):
    return (TINY, f"base_output_directory={directory}", "enable_checkpointing=true")


TWICE = (
    "steps=6",
    "rlax.objective.epochs=2",
    "rlax.objective.old_policy=proximal",
    "rlax.objective.kl.coefficient=0.1",
)


@pytest.fixture(scope="module")
def of_two_steps(tmp_path_factory):
    """Directory and trainer port of a run that was asked to stop after its second step."""
    directory, port = tmp_path_factory.mktemp("parent"), FakePort(stop_after=2)
    trainer((*saving(directory), *TWICE)).run(port)
    return directory, port


@pytest.fixture
def two_steps(of_two_steps, tmp_path):
    """The same run, in a directory of the test's own."""
    directory, port = of_two_steps
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    return port


def test_it_publishes_before_it_asks_and_stops_with_a_checkpoint(two_steps, tmp_path, monkeypatch):
    argv, port = (*saving(tmp_path), *TWICE), two_steps
    assert port.calls == [
        ("publish", 0),
        *[("batch", 1), ("publish", 1), ("done", 1)],
        *[("batch", 2), ("publish", 2), ("done", 2)],
        ("checkpoint", 2),
    ]
    for step in (1, 2):
        report = diagnostics.summarise(port.metrics[step])
        assert report["objective/tokens"] == 2 * 36 and report["objective/sequences"] == 2 * 8
        # The first update of step 1 is at the reference and at pi_old, the second no longer.
        assert report["objective/reference_kl_k3"] > 1e-3
        assert abs(report["objective/ratio"] - 1) > 1e-3
    assert isinstance(port.metrics[2]["learning/grad_norm"], np.ndarray)

    class Looking(FakePort):
        def publish(self, *args):
            seen.append(own.vocabulary)  # before there are weights to sample with
            super().publish(*args)

    own, seen, resumed = trainer(argv), [], Looking(stop_after=3, canary=False)
    assert own.vocabulary == 0
    own.run(resumed)
    assert seen[0] == 64
    assert resumed.calls[:2] == [("publish", 2), ("batch", 3)]

    # A checkpoint that is only read, and is not the newest.
    reader, read = trainer(argv, tmp_path / "scratch"), FakePort(stop_after=0)
    assert reader.checkpoints() == {2: "3", 3: "5"}
    reader.publish_checkpoint(read, "3")
    importing = "importing MaxText and reading its config"
    assert port.waited_for == resumed.waited_for == [importing, "building the model"]
    assert read.waited_for == [importing, "reading the checkpoint"]
    assert read.calls == [("publish", 2)] and read.weights[2].keys() == port.weights[2].keys()
    for name, weights in read.weights[2].items():
        np.testing.assert_array_equal(weights, port.weights[2][name])
    assert any((w != resumed.weights[3][name]).any() for name, w in read.weights[2].items())
    monkeypatch.setattr(rlax_config, "load_to_check", None)  # the publisher's thread has the config
    assert callable(reader.converter())


def test_the_first_weights_are_those_that_a_run_publishes_first(of_two_steps, tmp_path):
    directory, ran = of_two_steps
    before = sorted(directory.rglob("*"))
    port, reader = FakePort(stop_after=0), trainer((*saving(tmp_path), *TWICE))
    reader.publish_first(port)
    assert port.calls == [("publish", 0)] and port.weights[0].keys() == ran.weights[0].keys()
    for name, weights in port.weights[0].items():
        np.testing.assert_array_equal(weights, ran.weights[0][name])
    assert not list(tmp_path.rglob("checkpoints/*")) and sorted(directory.rglob("*")) == before


def test_a_run_starts_from_the_weights_of_another_one_with_other_updates(two_steps, tmp_path):
    # MaxText counts updates, from 0.
    origin = Descent(f"{tmp_path}/tiny", 2, "3")
    rate = 1e-3
    new = ("run_name=new", f"learning_rate={rate}", "steps=2")
    argv = (*saving(tmp_path), *new, "rlax.trainer.warm_start.enabled=true")  # which is skipped
    starting, port = trainer(argv), FakePort(stop_after=1, canary=False)
    assert starting.start_from(origin) == "the warm start"
    starting.run(port)
    assert port.calls[:3] == [("publish", 0), ("batch", 1), ("publish", 1)]
    assert port.weights[0].keys() == two_steps.weights[2].keys()
    assert any("norm" in name for name in port.weights[0])
    for name, value in two_steps.weights[2].items():
        np.testing.assert_array_equal(port.weights[0][name], value, err_msg=name)
    # Adam's first step is the learning rate, whatever the gradient: its state is fresh.
    moved = np.concatenate([(w - port.weights[0][n]).ravel() for n, w in port.weights[1].items()])
    assert np.median(np.abs(moved)) == pytest.approx(rate, rel=0.02)

    narrow = trainer((*argv, "run_name=narrow", "base_mlp_dim=32"))
    narrow.start_from(origin)
    with pytest.raises(ConfigError, match=r"^--from = '.*tiny@2': .* another model: ") as rejected:
        narrow.run(FakePort(stop_after=1, canary=False))
    assert rejected.match(
        r"mlp/wi_0/kernel': shape \(32, 2, 64\) but .* \(32, 2, 32\) \(and 2 more\)$"
    )

    shutil.rmtree(tmp_path / "tiny")
    again, port = trainer(argv), FakePort(stop_after=2, canary=False)
    again.start_from(origin)  # it has a checkpoint of its own
    again.run(port)
    assert port.calls[:2] == [("publish", 1), ("batch", 2)]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("rlax.objective.mini_batches=4", "groups_per_step * group_size): set it to 2"),
        ("gradient_accumulation_steps=3", "group_size): no value satisfies this; change the rows"),
    ],
)
def test_a_batch_that_does_not_fit_is_rejected(tmp_path, argv, expected):
    with pytest.raises(ConfigError) as error:
        trainer((TINY, f"base_output_directory={tmp_path}", argv)).run(FakePort(stop_after=1))
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("max_target_length=32", "max_target_length = 32: must be rlax.rollouts.max_prompt_tok"),
        ("rlax.trainer.warm_start.enabled=true", "prompt source 'none' gives no right answers"),
        (
            "hardware=gpu attention=cudnn_flash_jax rlax.batches.sequences_per_row=2",
            "attention = 'cudnn_flash_jax': cannot be used with rlax.batches.sequences_per_row",
        ),
        (SHARED, "= 16: must be rlax.rollouts.max_prompt_tokens + sequences_per_row * max_new"),
        (f"{SHARED} {LONG} {WINDOW}", "attention_type = 'local_sliding': must be global with rlax"),
        (
            f"{SHARED} {LONG} decoder_block=gemma2",
            "decoder_block = 'gemma2': must be one of llama2",
        ),
        ("per_device_batch_size=3", "mini_batches = 1 is 3, and the 8 rows of a batch"),
        ("vocab_size=63", "vocab_size = 63: must be above 63, the largest token id of rlax.prompt"),
        # Found by building and calling the model, without an array.
        ("base_num_kv_heads=3", "base_num_kv_heads = 3: Invalid num_kv_heads for GQA"),
    ],
)
def test_check_finds_what_maxtext_would_reject(argv, expected):
    words = argv.split()
    context = context_of((TINY, *(word for word in words if word.startswith("rlax"))))
    with pytest.raises(ConfigError) as error:
        whole = dataclasses.replace(context, config=resolve(TINY, words))
        OFFER.check(options_of(context), whole)
    assert expected in str(error.value)


@pytest.mark.parametrize(("files", "warned"), [(("no-such*",), True), (("nul[l]",), False)])
def test_check_warns_of_an_accelerator_that_this_machine_lacks(monkeypatch, files, warned):
    monkeypatch.setitem(checking._DEVICE_FILES, "tpu", files)
    context = context_of((TINY,))
    whole = dataclasses.replace(context, config=resolve(TINY, ["hardware=tpu"]))
    found = dict(OFFER.check(options_of(context), whole).warnings)
    assert ("hardware" in found) == warned
    assert not warned or "is tpu, and this machine has no such device" in found["hardware"]


def test_a_warm_start_needs_a_split_to_measure_on_before_anything_is_computed():
    class Unmeasured(Numbers):
        splits, pad_id = ("train", "test"), 0

        def answer_tokens(self, prompt):
            return prompt.tokens

    given = context_of((TINY, "rlax.trainer.warm_start.enabled=true"))

    def part(kind, choice, key):
        return Unmeasured() if kind == "prompt_source" else given.part(kind, choice, key)

    context, port = dataclasses.replace(given, part=part), FakePort(stop_after=1)
    told = "warm_start.enabled = True: must be false: .* has no split validation.* but train, test"
    with pytest.raises(ConfigError, match=told):
        OFFER.check(options_of(context), context)
    with pytest.raises(ConfigError, match=told):
        OFFER.build(options_of(context), context).run(port)
    assert port.waited_for == []


def test_check_adds_up_what_training_needs():
    argv = (TINY, "gradient_accumulation_steps=2", "per_device_batch_size=2", "opt_type=sgd")
    kl = "rlax.objective.kl.coefficient=0.1"
    context = context_of((*argv, kl))
    checked = OFFER.check(options_of(context), context)
    # Embedding 64 x 32; a layer: attention 4 x 32^2, MLP 3 x 32 x 64, two norms; a norm at the end.
    parameters = 64 * 32 + 2 * (4 * 32**2 + 3 * 32 * 64 + 2 * 32) + 32
    assert f"{parameters:,} parameters" in checked.says["model"]
    update = checked.says["one update"]
    assert update.startswith("a step of MaxText: 8 rows = 2 micro-batch(es) x 2 device(s) x per")
    # Of all devices together, although only one is here. A stack of two layers has norms, too.
    stack = 2 * (4 * 32**2 + 3 * 32 * 64 + 2 * 32)
    gathered = 4 * (64 * 32 + 2 * stack // 2)
    assert checked.memory == {
        "parameters": 4 * parameters,
        "optimizer state (sgd)": 4,  # how many updates there were
        "gradients": 2 * 4 * parameters,  # of a micro-batch, and their sum
        "copy that is being published": 4 * parameters,
        "logits of 4 x 16 tokens and their gradient": 2 * 4 * 4 * 16 * 64,
        "reference policy": 4 * parameters,
        "inputs of 2 layers, for the backward pass": 4 * 2 * 4 * 16 * 32,
        "copy of the weights in float32, for arithmetic": 4 * stack,
        "a layer and its gradient, and the output, gathered on 2 devices": 2 * gathered,
    }
    warned = [key for key, _ in checked.warnings]
    assert warned == ["load_parameters_path", "enable_checkpointing"]

    allowed = (
        "rlax.trainer.allow_untested=true",
        "rlax.signals=[{name: reference, offload: true}]",
    )
    context = context_of((*argv, kl, *allowed))
    checked = OFFER.check(options_of(context), context)
    assert "reference policy" not in checked.memory
    assert "rlax.trainer.allow_untested" in dict(checked.warnings)


def logits_of(context):
    """The lines about logits of what ``rlax check`` adds up."""
    memory = OFFER.check(options_of(context), context).memory
    return {what: size for what, size in memory.items() if what.startswith("logits")}


@pytest.mark.parametrize(
    ("argv", "what", "positions", "words"),
    [
        # Of 16 positions of a row at most 8 (max_new_tokens) have sampled targets.
        ((), "8 x 8 tokens and their gradient", 8 * 8, 512),
        (("num_vocab_tiling=4",), "8 x 8 tokens and their gradient, a tile of 4", 8 * 8, 128),
        (("mtp_num_layers=1",), "8 x 16 tokens and their gradient", 8 * 16, 512),
    ],
    ids=["one pass", "tiled", "multi-token prediction"],
)
def test_check_counts_the_logits_that_a_step_computes(argv, what, positions, words):
    context = context_of((TINY, "vocab_size=512", *argv))
    assert logits_of(context) == {f"logits of {what}": 2 * 4 * positions * words}


def test_check_counts_the_logits_of_a_larger_warm_start(tmp_path):
    class Answered(Numbers):
        splits, pad_id = ("train", "validation"), 0

        def answer_tokens(self, prompt):
            return prompt.tokens

    def logits_with(*argv):
        warm = "rlax.trainer.warm_start.enabled=true"
        given = context_of((TINY, "vocab_size=512", warm, *argv))

        def part(kind, choice, key):
            return Answered() if kind == "prompt_source" else given.part(kind, choice, key)

        return logits_of(dataclasses.replace(given, part=part))

    # A batch of 32 rows (tiny.yml), with logits for all 16 positions.
    supervised = "logits of 32 x 16 tokens and their gradient in the warm start"
    assert logits_with() == {supervised: 2 * 4 * 32 * 16 * 512}
    rl = {"logits of 8 x 8 tokens and their gradient": 2 * 4 * 8 * 8 * 512}
    assert logits_with("rlax.trainer.warm_start.batch_rows=4") == rl  # 4 x 16 are no more
    assert logits_with(f"rlax.trainer.warm_start.directory={tmp_path}") == rl


def test_check_warns_of_rows_that_the_attention_kernel_of_tpus_rejects():
    """The compiler said so of 768 tokens: q_block_size=512 should divide q_seq_len=768."""
    keys = {"hardware": "tpu", "attention": "autoselected"}
    keys |= dict.fromkeys(("sa_block_q", "sa_block_kv", "sa_block_kv_compute"), 512)
    for row, other, expected in (
        (768, {}, "together have 1024 tokens"),
        (528, {"attention": "flash"}, "together have 1024 tokens"),
        (1024, {}, ""),
        (456, {}, "together have 512 tokens"),
        (384, {}, ""),
        (96, {}, ""),
        (768, {"attention": "dot_product"}, ""),
        (768, {"hardware": "gpu"}, ""),
        (768, dict.fromkeys(("sa_block_q", "sa_block_kv", "sa_block_kv_compute"), 256), ""),
    ):
        config = SimpleNamespace(**keys | {"max_target_length": row} | other)
        found = dict(checking._warnings_of_rows(config)).get("max_target_length", "")
        assert found.endswith(expected) and bool(found) == bool(expected)


def test_check_warns_of_versions_that_are_rounded_more_than_the_computation():
    for dtype, warned in (("bfloat16", False), ("float32", True)):
        context = context_of((TINY, "rlax.weights.dtype=bfloat16", f"dtype={dtype}"))
        warnings = dict(OFFER.check(options_of(context), context).warnings)
        assert ("rlax.weights.dtype" in warnings) == warned


def test_a_replay_uses_the_warm_start_of_its_run(tmp_path):
    argv = (TINY, f"base_output_directory={tmp_path}", "rlax.trainer.warm_start.enabled=true")
    context = dataclasses.replace(context_of(argv), replays=f"{tmp_path}/run")
    made = f"{tmp_path}/run/prepared/warm_start"
    starting = OFFER.build(options_of(context), context)
    with pytest.raises(ConfigError) as error:
        starting.warm_start()
    assert str(error.value) == f"rlax.trainer.warm_start.directory = '{made}': does not exist"
    Path(made).mkdir(parents=True)
    assert starting.warm_start().directory == made
    # A directory that the config names is that of every run, its replays included.
    given = (*argv, f"rlax.trainer.warm_start.directory={tmp_path}")
    context = dataclasses.replace(context_of(given), replays=f"{tmp_path}/run")
    assert OFFER.build(options_of(context), context).warm_start().directory == str(tmp_path)


def test_init_writes_what_check_accepts_and_explains(tmp_path):
    """The command line, as in docs/getting_started.md, in this process, which has MaxText."""
    file = str(tmp_path / "run.yml")

    assert rlax("init", file, "--yes").exit_code == 0
    result = rlax("check", file, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [line.split()[0] for line in found["checked"]] == ["ok", "ok"]
    assert found["numbers"]["epochs"] == pytest.approx(
        100 * 64 / found["numbers"]["training_prompts"]
    )
    assert found["memory_bytes"].keys() == {"rlax.trainer", "rlax.rollouts.engine"}
    assert found["warnings"] == []
    assert found["words"]["rlax.trainer"]["warm start"].startswith("supervised, at most 2,000 ")


def test_without_steps_the_first_weights_are_published_and_nothing_trains(tmp_path):
    port, argv = FakePort(stop_after=None, canary=False), saving(tmp_path)
    context = context_of(argv)
    none = dataclasses.replace(context, config=resolve(argv[0], [*argv[1:], "steps=0"]))
    OFFER.build(options_of(context), none).run(port)
    assert port.calls == [("publish", 0)]
