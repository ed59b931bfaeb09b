"""Training on demonstrations: its rows, its loss and gradient, and a training that is killed."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax_maxtext
from data_sets import prepare_here, write_lines
from flax import nnx
from rlax_maxtext import demonstrations, supervised
from rlax_maxtext.config_agreement import demonstrations as read_demonstrations
from rlax_maxtext.options import DATA, TrainerOptions
from tiny_loop import TINY

from maxtext_overrides.config import loading as rlax_config
from maxtext_overrides.trainer.train_loop import Events, run_train_loop
from maxtext_overrides.variables import published
from rlax_plugin.api import BuildContext, Demonstration, RunFiles
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import resolve
from rlax_plugin.config.validation import validate
from rlax_plugin.testing import FakeTrainerPort

LENGTH = 64
SHAPE = (
    "vocab_size=272",
    f"max_target_length={LENGTH}",
    "rlax.rollouts.max_prompt_tokens=32",
    "rlax.rollouts.max_new_tokens=32",
)
PACKED = (
    "rlax.batches.sequences_per_row=4",
    "rlax.batches.rows=4",
    "per_device_batch_size=4",
)


def rows_of(count):
    """Conversations of one and two turns, and of different lengths."""
    return [
        {"prompt": f"{n}+1" + " " * (n % 7) + "=", "completion": "ab" * (n % 5 + 1)}
        for n in range(count)
    ]


def given(tmp_path, *argv, count=24, **options):
    """(resolved config, MaxText's, options of the warm start, context) for a file of rows."""
    data = write_lines(tmp_path / "mine.jsonl", rows_of(count))
    source = f"name: jsonl, path: {data}, tokenizer: bytes, chat: false"
    split = f"{{{source}, held_out: {{validation: 0.2}}}}"
    options = {"enabled": "true", "data": split, "batch_rows": 4, "learning_rate": 1e-2} | options
    warm = [f"rlax.trainer.warm_start.{name}={value}" for name, value in options.items()]
    cleared = [f"rlax.trainer.warm_start.{name}=null" for name in ("steps",) if name not in options]
    directory = f"base_output_directory={tmp_path}"
    config = resolve(TINY, [*SHAPE, directory, *cleared, *warm, *argv])
    loaded = rlax_config.initialize(config)
    chosen = validate(TrainerOptions, loaded.rlax.trainer.options, "rlax.trainer").warm_start
    registry, section = registry_for(loaded.rlax), loaded.rlax

    def part(kind, choice, key):
        return registry.part(kind, choice, key, context)

    context = BuildContext(tmp_path, 0, section, config, str(tmp_path), part=part)
    return config, loaded, chosen, context


def test_rows_have_segments_positions_and_trained_targets():
    examples = [Demonstration([5, 6, 7, 8], [(1, 2), (3, 4)]), Demonstration([9, 10, 11], [(2, 3)])]
    arrays = supervised.laid_out([examples, []], 7, 0)
    assert arrays["inputs"].tolist() == [[5, 6, 7, 9, 10, 0, 0], [0] * 7]
    assert arrays["targets"].tolist() == [[6, 7, 8, 10, 11, 0, 0], [0] * 7]
    assert arrays["inputs_segmentation"].tolist() == [[1, 1, 1, 2, 2, 0, 0], [0] * 7]
    assert arrays["targets_segmentation"].tolist() == [[1, 0, 1, 0, 2, 0, 0], [0] * 7]
    assert arrays["inputs_position"][0].tolist() == [0, 1, 2, 0, 1, 5, 6]
    with pytest.raises(ConfigError, match="max_target_length = 4: must be at least 5"):
        supervised.laid_out([examples], 4, 0)


@pytest.mark.parametrize("in_row", [1, 3])
def test_each_epoch_takes_each_demonstration_once(in_row):
    sizes = np.random.default_rng(0).integers(1, 30, 101)
    made = demonstrations.Epochs(
        sizes.tolist(), length=40, sequences_per_row=in_row, batch_rows=8, epochs=3, seed=1
    )
    seen = [index for step in range(1, made.steps + 1) for row in made.rows(step) for index in row]
    orders = [seen[101 * epoch : 101 * (epoch + 1)] for epoch in range(3)]
    assert all(sorted(order) == list(range(101)) for order in orders)
    assert orders[0] != orders[1]
    rows = [row for step in range(1, made.steps + 1) for row in made.rows(step)]
    assert all(sum(sizes[row]) <= 40 and len(row) <= in_row for row in rows)
    assert all(len(made.rows(step)) == 8 for step in range(1, made.steps + 1))
    assert made.steps == {1: 39, 3: 21}[in_row]
    assert max(map(len, rows)) == in_row


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rlax.trainer.warm_start.batch_rows", "8"),
        ("rlax.trainer.warm_start.learning_rate", "0.1"),
        ("rlax.seed", "7"),
        ("rlax.batches.sequences_per_row", "2"),
        ("rlax.rollouts.max_new_tokens", "40"),
        ("rlax.trainer.warm_start.data", None),
    ],
)
def test_a_training_that_continues_names_what_has_changed(tmp_path, monkeypatch, key, value):
    prepare_here(monkeypatch)

    def plan_of(*argv, **options):
        _, _, warm, context = given(tmp_path, *argv, **options)
        data = read_demonstrations(context, warm)
        section = context.section
        names = ("batch_rows", "learning_rate")
        own = {f"rlax.trainer.warm_start.{name}": getattr(warm, name) for name in names}
        return demonstrations.plan_of(section, section.row_tokens, own, data.train)

    def check(files, plan, name, completed):
        demonstrations.check_plan(files, "plan.json", plan, DATA, name, completed)

    files = RunFiles(tmp_path / "prepared")
    first = plan_of()
    check(files, first, "jsonl", 0)
    check(files, first, "jsonl", 3)
    changed = plan_of(count=25) if value is None else plan_of(f"{key}={value}")
    if key == "rlax.rollouts.max_new_tokens":
        key = "max_target_length"
    with pytest.raises(ConfigError) as refused:
        check(files, changed, "jsonl", 3)
    assert refused.value.key == key
    began = "than when this training began" if value is None else "when this training on"
    assert began in refused.value.reason
    # A training without a trained step follows what is given now.
    check(files, changed, "jsonl", 0)
    check(files, changed, "jsonl", 1)


def plain_loss(params, rest, graph, examples):
    """The mean over trained tokens, each demonstration alone in a row of its own."""
    model = nnx.merge(graph, params, rest, copy=True)
    total, count = 0.0, 0
    for one in examples:
        tokens = np.zeros((1, LENGTH + 1), np.int32)
        tokens[0, : len(one.tokens)] = one.tokens
        segments = (np.arange(LENGTH) < len(one.tokens) - 1).astype(np.int32)[None]
        logits = model(
            decoder_input_tokens=tokens[:, :-1],
            decoder_positions=np.arange(LENGTH, dtype=np.int32)[None],
            decoder_segment_ids=segments,
            enable_dropout=False,
        )
        logprobs = jax.nn.log_softmax(logits[0].astype(jnp.float32))
        for begin, end in one.spans:
            places = np.arange(begin - 1, end - 1)
            total -= jnp.sum(logprobs[places, tokens[0, places + 1]])
            count += end - begin
    return total / count


@pytest.mark.slow
def test_loss_and_gradient_are_those_of_a_plain_loop_packed_and_padded(tmp_path, monkeypatch):
    prepare_here(monkeypatch)
    descent = ("opt_type=sgd", "gradient_clipping_threshold=0.0", "steps=1", "learning_rate=1.0")
    constant = ("learning_rate_final_fraction=1.0", *PACKED)
    _, _, warm, context = given(tmp_path, *descent, *constant)
    table = read_demonstrations(context, warm).train
    examples = demonstrations.read(table, range(7))
    padded = [[one] for one in examples[:7]] + [[]]
    packed = [examples[:3], examples[3:7]] + [[]] * 6
    assert all(sum(len(one.tokens) - 1 for one in row) <= LENGTH for row in packed)
    config = rlax_config.initialize(
        resolve(TINY, [*SHAPE, f"base_output_directory={tmp_path}", *descent, *constant[:1]]),
        per_device_batch_size=8,
    )
    found = {}
    for name, rows in {"padded": padded, "packed": packed}.items():
        arrays, started = supervised.laid_out(rows, LENGTH, 0), []

        def on_start(loop, started=started):
            with loop.shardings():
                model = nnx.merge(loop.graph, loop.model_state, copy=True)
                graph, params, rest = nnx.split(model, nnx.Param, ...)
                loss, gradient = jax.value_and_grad(plain_loss)(params, rest, graph, examples)
            held_out = demonstrations._held_out_loss(table, len(examples), 0, config)
            assert held_out is not None and held_out(loop) == pytest.approx(float(loss), rel=1e-5)
            started.append((loss, published(gradient), jax.device_get(published(loop.model_state))))

        losses = []
        events = Events(
            batches=lambda step, arrays=arrays: arrays,
            on_step_end=lambda loop, metrics, losses=losses: losses.append(
                float(metrics["learning/loss"])
            ),
            on_start=on_start,
        )
        loop = run_train_loop(config, events)
        after = jax.device_get(published(loop.model_state))
        (expected, gradient, before), (loss,) = started[0], losses
        assert loss == pytest.approx(float(expected), rel=1e-6)
        step = np.concatenate([(before[one] - after[one]).ravel() for one in before])
        right = np.concatenate([np.asarray(gradient[one]).ravel() for one in before])
        found[name] = np.linalg.norm(step - right) / np.linalg.norm(right)
        assert np.linalg.norm(right) > 0.1
    assert max(found.values()) < 1e-6, found


class Killed(Exception):
    pass


@pytest.mark.ci
@pytest.mark.slow
def test_a_killed_training_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    prepare_here(monkeypatch)
    loops, shown = [], []
    real = demonstrations.run_train_loop
    monkeypatch.setattr(
        demonstrations, "run_train_loop", lambda *args: loops.append(real(*args)) or loops[-1]
    )
    saving = (
        "enable_checkpointing=true",
        "checkpoint_period=2",
        *PACKED,
    )

    def train(name, kill_at=None):
        def on_progress(step, steps, note):
            shown.append((step, steps, note))
            if step == kill_at:
                raise Killed

        config, loaded, warm, context = given(
            tmp_path, *saving, f"run_name={name}", epochs=2, batch_rows=2, check_every=3
        )
        data = read_demonstrations(context, warm)
        return demonstrations.train(config, loaded, warm, data, on_progress)

    path = train("whole")
    whole, steps = jax.device_get(published(loops[-1].model_state)), shown[-1][1]
    notes = [note for _, _, note in shown]
    assert [step for step, _, _ in shown] == list(range(1, steps + 1))
    assert 5 < steps < 14
    first, last = (float(notes[i].split()[1].rstrip(",")) for i in (0, -1))
    assert last < first
    assert "held out" in notes[-1] and "held out" not in notes[0]
    kept = [int(folder.name) for folder in Path(path).parents[1].iterdir() if folder.name.isdigit()]
    assert len(kept) == 2 and max(kept) == steps - 1
    with pytest.raises(Killed):
        train("killed", kill_at=4)
    shown.clear()
    again = train("killed")
    assert [step for step, _, _ in shown] == list(range(4, steps + 1))  # after the checkpoint
    assert [note for _, _, note in shown] == notes[3:]
    killed = jax.device_get(published(loops[-1].model_state))
    assert all(np.array_equal(whole[name], killed[name]) for name in whole)
    assert again == path.replace("/whole/", "/killed/")
    shown.clear()
    assert train("killed") == again
    assert shown == []

    losses = supervised.files_of(*_config_of(tmp_path, saving, "killed")).get_json("metrics.json")
    assert [step for step, _ in losses["loss"]] == list(range(1, steps + 1))

    def measures_until_6(*_):
        def measure(loop):
            if loop.completed == 6:
                raise Killed
            return 1.0

        return measure

    monkeypatch.setattr(demonstrations, "_held_out_loss", measures_until_6)
    with pytest.raises(Killed):
        train("changed")
    losses = supervised.files_of(*_config_of(tmp_path, saving, "changed")).get_json("metrics.json")
    assert [step for step, _ in losses["loss"]] == [1, 2, 3, 4, 5, 6]
    assert losses["held_out"] == [[3, 1.0]]
    write = rows_of(25)[1:]
    monkeypatch.setattr("test_demonstrations.rows_of", lambda count: write)
    with pytest.raises(ConfigError, match="other demonstrations than when this training began"):
        train("changed")


@pytest.mark.ci
@pytest.mark.slow
def test_the_trainer_publishes_the_weights_and_needs_the_data_no_more(tmp_path, monkeypatch):
    prepare_here(monkeypatch)
    saving = ("enable_checkpointing=true", "checkpoint_period=100", "steps=0")
    loops, real = [], demonstrations.run_train_loop
    monkeypatch.setattr(
        demonstrations, "run_train_loop", lambda *args: loops.append(real(*args)) or loops[-1]
    )
    config, loaded, warm, context = given(tmp_path, *saving, "run_name=alone", count=12)
    demonstrations.train(config, loaded, warm, read_demonstrations(context, warm))
    alone = jax.device_get(published(loops[0].model_state))

    def ran(**places):
        *_, context = given(tmp_path, *saving, "run_name=whole", count=12)
        for gone in places.pop("gone", ()):
            gone.unlink()
        source = SimpleNamespace(tokenizer=None, prompts=lambda split: [], stop_ids=())
        part = context.part
        context = dataclasses.replace(
            context,
            part=lambda kind, choice, key: (
                source if key == "rlax.prompt_source" else part(kind, choice, key)
            ),
            **places,
        )
        offer = rlax_maxtext.rlax_register_trainer()["maxtext"]
        options = validate(TrainerOptions, context.section.trainer.options, "rlax.trainer")
        offer.check_start(options, context)
        port = FakeTrainerPort(canary_tokens=np.array([], np.int32))  # compiling one takes seconds
        offer.build(options, context).run(port)
        return port.published[0]

    def same(weights):
        return all(np.array_equal(weights[name], alone[name]) for name in alone)

    whole = f"{tmp_path}/whole"
    assert same(ran(run_url=whole)) and len(loops) == 2
    data = tmp_path / "mine.jsonl"
    assert same(ran(run_url=whole, gone=[data]))
    assert same(ran(run_url=f"{tmp_path}/replay", replays=whole, gone=[data]))
    assert len(loops) == 2


def _config_of(tmp_path, saving, name):
    _, loaded, warm, _ = given(tmp_path, *saving, f"run_name={name}", batch_rows=2)
    return loaded, warm


def on_two_devices(context):
    """The context with half of the rows on each device."""
    maxtext = {**context.config.maxtext, "per_device_batch_size": 4}
    return dataclasses.replace(context, config=dataclasses.replace(context.config, maxtext=maxtext))


def test_check_counts_them_and_names_the_row_and_the_key(tmp_path, monkeypatch):
    prepare_here(monkeypatch)
    monkeypatch.setattr(
        "test_demonstrations.rows_of",
        lambda count: [
            {"prompt": "1+1=", "completion": "2"},
            {"prompt": "x", "completion": "y" * 99},
        ],
    )
    named = f"{{name: jsonl, path: {tmp_path}/mine.jsonl, tokenizer: bytes, chat: false}}"
    *_, context = given(tmp_path, data=named)
    offer = rlax_maxtext.rlax_register_trainer()["maxtext"]
    monkeypatch.setattr("rlax_maxtext.checking.check_vocabulary", lambda *_: None)
    options = validate(TrainerOptions, context.section.trainer.options, "rlax.trainer")
    said = offer.check(options, context).says["warm start"]
    assert said == (
        "supervised, 1 demonstrations (left out: 1 too long), 1 epoch(s) in steps of 4 rows, "
        "learning_rate 0.01"
    )
    odd = options.warm_start.model_copy(update={"batch_rows": 3, "steps": 7})
    with pytest.raises(ConfigError, match=r"warm_start.batch_rows = 3: must be a multiple of 2 "):
        offer.check(options.model_copy(update={"warm_start": odd}), on_two_devices(context))
    few = options.model_copy(update={"warm_start": odd.model_copy(update={"batch_rows": 4})})
    said = offer.check(few, on_two_devices(context)).says["warm start"]
    assert "1 epoch(s), at most 7 steps, in steps of 4 rows" in said
    monkeypatch.setattr(
        "test_demonstrations.rows_of", lambda count: [{"prompt": 1, "completion": "2"}]
    )
    _, _, warm, context = given(tmp_path)
    with pytest.raises(ConfigError, match=r"^rlax.trainer.warm_start.data.broken = .*line 1, must"):
        read_demonstrations(context, warm)
