"""Demonstrations beside RL: the loss by its formula, whole and in micro-batches, and what a resume
compares."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_sets import prepare_here, write_lines
from flax import nnx
from rlax_maxtext.config_agreement import check_rows
from rlax_maxtext.config_agreement import demonstrations as read_demonstrations
from rlax_maxtext.mixing import TERM, MixedRows, term
from rlax_maxtext.options import MixedDemonstrations, TrainerOptions, check_start
from tiny_loop import LENGTH, ROWS, TINY, batch

from maxtext_overrides.config import loading as rlax_config
from maxtext_overrides.trainer.train_loop import Events, fresh_weights, run_train_loop
from maxtext_overrides.trainer.updates import Updates
from maxtext_overrides.variables import published
from rlax_plugin.api import (
    ARRAYS,
    DEMONSTRATED,
    TEMPERATURE,
    BuildContext,
    ConfigError,
    ObjectiveSlots,
    RunFiles,
    loss_weight,
    make_loss,
    scale_names,
    whole_update,
)
from rlax_plugin.build import registry_for
from rlax_plugin.config import Algorithm
from rlax_plugin.config.loading import resolve
from rlax_plugin.config.validation import validate
from rlax_plugin.training.objective.diagnostics import summarise

SHOWN = 4
COUNT = 11
RATE = 0.01
TEMPERED = 0.5
SLOTS = ObjectiveSlots(
    aggregation=lambda inputs: (inputs.mask_bt, inputs.sequence_count()),
    advantages=lambda outcomes: outcomes.totals_n,
    importance_weight=lambda inputs: jnp.ones_like(inputs.mask_bt),
    grad_1=lambda inputs: inputs.logprobs_bt,
    grad_2=lambda inputs: jnp.zeros_like(inputs.mask_bt),
    corrections=(),
    algorithm=Algorithm(),
)


def given(tmp_path, *argv, count=COUNT):
    """MaxText's config, the options of the demonstrations, and the demonstrations."""
    rows = [{"prompt": f"{n}+1=", "completion": "ab" * (n % 3 + 1)} for n in range(count)]
    data = write_lines(tmp_path / "mine.jsonl", rows)
    source = f"{{name: jsonl, path: {data}, tokenizer: bytes, chat: false}}"
    mixed = f"{{data: {source}, rows: {SHOWN}, weight: {{from: 0.5, to: 0.1, steps: 2}}}}"
    config = resolve(
        TINY,
        [
            f"base_output_directory={tmp_path}",
            "vocab_size=272",
            f"per_device_batch_size={ROWS + SHOWN}",
            f"rlax.rollouts.temperature={TEMPERED}",
            f"rlax.trainer.demonstrations={mixed}",
            "opt_type=sgd",
            f"learning_rate={RATE}",
            "learning_rate_final_fraction=1.0",
            "gradient_clipping_threshold=0.0",
            *argv,
        ],
    )
    loaded = rlax_config.initialize(config)
    section = loaded.rlax
    options = validate(TrainerOptions, section.trainer.options, "rlax.trainer").demonstrations
    registry = registry_for(section)

    def part(kind, choice, key):
        return registry.part(kind, choice, key, context)

    context = BuildContext(tmp_path, 0, section, config, str(tmp_path), part=part)
    return loaded, options, read_demonstrations(context, options)


def run(tmp_path, *argv, step=2):
    """The weights before and after one update, what it reports, and its batch."""
    config, options, data = given(tmp_path, *argv)
    mixed = MixedRows(config.rlax, options, data, 10)
    terms, found = {TERM: term(options)}, {}
    arrays = ARRAYS | {DEMONSTRATED: ARRAYS["rl_mask"], TEMPERATURE: ARRAYS["rl_advantages"]}

    def keep(loop):
        found[loop.completed] = jax.device_get(fresh_weights(loop))

    def on_start(loop):
        keep(loop)
        found["model"] = (loop.graph, jax.device_get(loop.model_state))

    def on_step_end(loop, metrics):
        keep(loop)
        found["metrics"] = summarise(jax.device_get(metrics))

    added = mixed.added(step, batch(1) | {"rl_step": np.full((ROWS, LENGTH), step, np.int32)})
    events = Events(
        batches=lambda _: added,
        on_step_end=on_step_end,
        on_start=on_start,
        decide=lambda step: (False, True),
        update=lambda arrays: whole_update(terms, arrays, partial(loss_weight, SLOTS)),
        update_arrays=dict.fromkeys(scale_names(terms), ARRAYS["rl_advantages"]),
    )
    run_train_loop(config, events, arrays=arrays, objective=make_loss(SLOTS, terms))
    return found, added, mixed


def test_the_loss_is_the_objective_and_the_weighted_mean_over_tokens(tmp_path, monkeypatch):
    prepare_here(monkeypatch)
    whole, arrays, mixed = run(tmp_path)
    parts = ("gradient_accumulation_steps=2", f"per_device_batch_size={(ROWS + SHOWN) // 2}")
    cut, _, _ = run(tmp_path, *parts)
    graph, state = whole["model"]
    params, rest = state.split(nnx.Param, ...)
    shown_bt = arrays["targets_segmentation"][ROWS:] > 0
    assert shown_bt.sum(axis=1).tolist() == [
        sum(3 + 2 * (i % 3) for i in row) for row in mixed._epochs.rows(2)
    ]

    def logprobs(params, rows, temperature):
        model = nnx.merge(graph, params, rest, copy=True)
        logits = model(
            decoder_input_tokens=arrays["inputs"][rows],
            decoder_positions=arrays["inputs_position"][rows],
            decoder_segment_ids=arrays["inputs_segmentation"][rows],
            enable_dropout=False,
        )
        of_all = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
        return jnp.take_along_axis(of_all, arrays["targets"][rows][..., None], -1)[..., 0]

    def plain(params):
        sampled_bt = logprobs(params, slice(0, ROWS), TEMPERED) * arrays["rl_advantages"][:ROWS]
        objective = jnp.where(arrays["rl_mask"][:ROWS] > 0, sampled_bt, 0.0).sum() / ROWS
        shown = logprobs(params, slice(ROWS, None), 1.0)
        mean = -jnp.where(shown_bt, shown, 0.0).sum() / shown_bt.sum()
        return -objective + 0.3 * mean, mean  # 0.3: half of the way from 0.5 to 0.1

    (_, mean), gradient = jax.value_and_grad(plain, has_aux=True)(params)
    moved = {name: -RATE * np.asarray(one) for name, one in published(gradient).items()}
    total = np.sqrt(sum((one**2).sum() for one in moved.values()))
    assert mixed.metrics["demonstrations/tokens"] == shown_bt.sum()
    for found in (whole, cut):
        assert found["metrics"]["objective/demonstration_loss"] == pytest.approx(
            float(mean), rel=1e-5
        )
        for name, right in moved.items():
            step = found[1][name] - found[0][name]
            assert np.linalg.norm(step - right) < 1e-4 * total, name


def test_a_run_that_continues_names_what_has_changed(tmp_path, monkeypatch):
    prepare_here(monkeypatch)
    files = RunFiles(tmp_path / "prepared")

    def rows(*argv, **options):
        config, mixed, data = given(tmp_path, *argv, **options)
        return MixedRows(config.rlax, mixed, data, 10)

    first = rows()
    with pytest.raises(ConfigError, match="has no record of its demonstrations"):
        first.start(RunFiles(tmp_path / "replay"), 0, files)
    first.start(files, 0)
    rows().start(files, 3)
    rows().start(RunFiles(tmp_path / "replay"), 0, files)
    with pytest.raises(ConfigError) as refused:
        rows(count=COUNT + 1).start(files, 3)
    assert refused.value.key == "rlax.trainer.demonstrations.data"
    with pytest.raises(ConfigError) as refused:
        rows("rlax.seed=7").start(files, 3)
    assert refused.value.key == "rlax.seed"
    with pytest.raises(ConfigError, match="other demonstrations"):
        rows(count=COUNT + 1).start(RunFiles(tmp_path / "replay"), 0, files)


def test_rows_are_added_in_mini_batches_alike_and_the_config_must_have_room(tmp_path, monkeypatch):
    prepare_here(monkeypatch)
    config, options, data = given(tmp_path)
    check_rows(config, config.rlax, SHOWN)
    with pytest.raises(ConfigError, match="must equal the 10 rows of a batch"):
        check_rows(config, config.rlax, 2)
    with pytest.raises(ConfigError, match=r"needs demonstrations\.data"):
        MixedDemonstrations(rows=2)
    updates = config.rlax.objective.model_copy(update={"mini_batches": 3})
    section = config.rlax.model_copy(update={"objective": updates})
    with pytest.raises(
        ConfigError, match=r"must be a multiple of rlax\.objective\.mini_batches = 3"
    ):
        check_start(TrainerOptions(demonstrations=options), BuildContext(tmp_path, 0, section))
    mixed = MixedRows(config.rlax, options, data, 10)
    own = batch(1)
    own["rl_mask"][1:] = 0  # rows of RL without a trained token
    added = dict(mixed.added(1, own))
    tokens_b = np.array([0] * ROWS + [1, 2, 7, 8])
    added[DEMONSTRATED] = (np.arange(LENGTH) < tokens_b[:, None]).astype(np.int32)
    for seed in range(8):
        parts = list(Updates(mini_batches=2, seed=seed).of(1, added))
        rows = [[n for n in part[DEMONSTRATED].sum(axis=1).tolist() if n] for part in parts]
        assert [len(of_part) for of_part in rows] == [2, 2]
        assert abs(sum(rows[0]) - sum(rows[1])) <= 2
    again = MixedRows(config.rlax, options, data, 3).added(2, own)
    assert all(np.array_equal(a, again[name]) for name, a in mixed.added(2, own).items())
