"""``rlax check --numerics``: quantiles by depth, the verdict, the table, and a measurement."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import rlax
from rich.console import Console

from rlax_plugin.base.errors import ConfigError, RlaxError, WorkerError
from rlax_plugin.config.loading import resolve
from rlax_plugin.testing.engine import ScriptedEngine
from rlax_plugin.testing.trainer import BigramTrainer
from rlax_plugin.tools.commands import numerics
from rlax_plugin.tools.commands.numerics import Numerics, document, show
from rlax_plugin.tools.commands.numerics.gaps import (
    KEPT_UPDATED,
    PACKED,
    Bounds,
    Cell,
    Gaps,
    cells,
    judge,
)
from rlax_plugin.tools.commands.numerics.measuring import measure, measured_config
from rlax_plugin.tools.commands.numerics.ways import lengths

FLOAT32, BFLOAT16 = Bounds.of(1e-4, 1.0), Bounds.of(0.5, 1.0)
WAYS, DEPTHS = ("prefill", "in company", PACKED, KEPT_UPDATED), (64, 128, 2048)


def test_quantiles_of_each_power_of_two_count_what_is_no_number_as_infinite() -> None:
    gap_n = np.array([1e-6, 3e-6, 2e-6, np.nan, 5e-6])
    whole, *rest = cells(Gaps("alone", np.array([1, 2, 3, 2048, 4095]), gap_n))
    assert (whole.depth, whole.tokens, whole.p50, whole.max) == (0, 5, 3e-6, np.inf)
    assert rest == [
        Cell("alone", 1, 1, 1e-6, 1e-6, 1e-6),
        Cell("alone", 2, 2, 3e-6, 3e-6, 3e-6),
        Cell("alone", 2048, 2, np.inf, np.inf, np.inf),
    ]


def test_bounds_are_the_canarys_tolerance_and_grow_where_temperature_divides_logits() -> None:
    assert (FLOAT32.p95, FLOAT32.max) == pytest.approx((2e-5, 1e-4))
    assert Bounds.of(0.5, 0.5).p95 == pytest.approx(0.2)
    assert Bounds.of(0.5, 2.0) == Bounds.of(0.5, 1.0)


def table(usual: float, **wrong: float) -> list[Cell]:
    """Cells of all ways and depths; ``wrong``: way_depth or way -> p95."""
    found = []
    for way in WAYS:
        for depth in (0, *DEPTHS):
            short = way.split(",")[0].split()[0]
            p95 = wrong.get(f"{short}_{depth}", wrong.get(short, usual))
            found.append(Cell(way, depth, 100, p95 / 2, p95, p95 * 1.5))
    return found


@pytest.mark.parametrize(
    ("bounds", "usual", "wrong", "text"),
    [
        (FLOAT32, 1e-6, {}, "trainer and engine compute the same"),
        (FLOAT32, 3e-5, {}, "trainer and engine compute the same"),  # of a deep model
        (FLOAT32, 6e-5, {}, "everywhere: the engine computes in another dtype"),
        (FLOAT32, 5e-6, {"packed": 4e-5}, "only packed rows: the trainer lets sequences"),
        (BFLOAT16, 0.06, {}, "the differences are those of rounding"),
        # One way at one depth; a stale context in bfloat16 is larger than the others, not than .1.
        (FLOAT32, 1e-6, {"kept": 1e-3}, "only kept contexts, after an update: the engine reads"),
        (BFLOAT16, 0.01, {"kept": 0.09}, "only kept contexts, after an update: the engine reads"),
        (FLOAT32, 1e-6, {"packed": 1e-2}, "only packed rows: the trainer lets sequences"),
        (FLOAT32, 1e-6, {f"{way.split()[0]}_2048": 1e-3 for way in ("prefill", "in", "packed")},
         "from depth 2,048 on, and not before"),
        (FLOAT32, 0.06, {}, "everywhere: the engine computes in another dtype"),
        (FLOAT32, 1e-6, {"prefill": 1e-3}, "only prefill: programs that do not agree"),
    ],
)  # fmt: skip
def test_the_verdict_says_what_the_wrong_cells_have_in_common(bounds, usual, wrong, text) -> None:
    found = judge(table(usual, **wrong), bounds, exact=bounds is FLOAT32)
    assert found.text.startswith(text)
    assert found.passes == ("rounding" in text or "the same" in text)
    if wrong:
        names = {one.name.split(",")[0].split()[0] for one in found.wrong}
        assert names == {key.partition("_")[0] for key in wrong}


def test_one_token_beyond_the_tolerance_fails() -> None:
    cells = table(1e-6)
    cells[5] = Cell("in company", 64, 100, 1e-6, 2e-6, 2e-4)
    assert judge(cells, FLOAT32, exact=True).wrong == [cells[5]]


def test_lengths_reach_the_end() -> None:
    assert lengths(1) == [1] and lengths(7) == [1, 2, 3, 4, 6, 7]
    assert lengths(4096)[-3:] == [2048, 3072, 4096]


def test_the_table_joins_shallow_depths_and_marks_what_is_wrong() -> None:
    cells = [Cell("prefill", 0, 900, 1e-7, 1e-6, 2e-6)]
    cells += [Cell("prefill", 1 << k, 90, 1e-7, (k + 1) * 1e-7, 2e-6) for k in range(11)]
    cells += [Cell("alone", 0, 9, 1e-7, 2e-3, 2e-3), Cell("alone", 1024, 9, 1e-7, 2e-3, 2e-3)]
    verdict = judge(cells, FLOAT32, exact=True)
    shown = Numerics(cells, FLOAT32, verdict, moved=1e-5, refused="", seconds=12.0)
    console = Console(width=100, record=True, file=io.StringIO())
    show(console, shown)
    text = console.export_text()
    lines = text.splitlines()
    rows = {line[:20].strip(): line[20:].split() for line in lines[2:5]}
    assert rows["p95 by depth from"][4:] == ["1", "16", "32", "64", "128", "256", "512", "1,024"]
    assert rows["prefill"][:5] == ["900", "1e-7", "1e-6", "2e-6", "4e-7"]
    assert rows["prefill"][-1] == "1e-6"
    assert rows["alone"][4:] == ["-"] * 7 + ["2e-3!"]
    assert "the update was too little to show weights or caches" in text
    assert lines[-1].startswith("Fails: ")


CONFIG = """
steps: 40
rlax:
  plugins: [rlax_plugin.testing]
  prompt_source: {name: numbers}
  rewards: [{name: even}]
  environment: {name: calculator}
  episodes: {max_turns: 4, max_tokens: 40}
  trainer: {name: bigram}
  weights: {store: {name: npz}}
  batches: {sequences_per_row: 2}
  rollouts:
    engine: {name: scripted}
    group_size: 4
    groups_per_step: 2
    max_prompt_tokens: 8
    max_new_tokens: 6
    slots: 8
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "config.yml").write_text(CONFIG)
    return str(tmp_path / "config.yml")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("rlax.rollouts.engine={name: scripted, weights_format: safetensors}",),
        ("rlax.rollouts.slots=1", "rlax.batches.rows=8"),  # all rows have the same sample
    ],
)
def test_a_trainer_and_an_engine_that_agree(config: str, tmp_path: Path, arguments) -> None:
    directory = f"base_output_directory={tmp_path}"
    ran = rlax("check", config, "--fast", "--numerics", "--json", directory, *arguments)
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)["numerics"]
    ways = [cell["name"] for cell in found["table"] if not cell["depth"]]
    assert ways == [
        *("prefill", "alone", "shared prompt", "kept contexts", "in company"),
        *("packed rows", "after an update", "kept contexts, after an update"),
    ]
    assert max(cell["max"] for cell in found["table"]) < 1e-5 < found["moved"]
    assert found["verdict"]["passes"] and not found["refused"]
    assert found["moved"] > 2 * found["bounds"]["p95"]
    assert [path.name for path in tmp_path.iterdir()] == ["config.yml"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": lambda tokens: tokens + 10**6}, "prefill: sample 0 has token"),
        ({"logprobs": lambda logprobs: -logprobs + 1}, "has log-probs above 0"),
        ({"versions": lambda versions: versions + 1}, "has tokens of version 1, not 0"),
    ],
)
def test_an_answer_that_no_run_would_take_is_an_error(
    config, tmp_path, monkeypatch, change, reason
) -> None:
    generate = ScriptedEngine.generate

    async def other(engine: ScriptedEngine, requests, deliver) -> None:
        def changed(key, samples) -> None:
            made = [
                replace(one, **{name: fn(getattr(one, name)) for name, fn in change.items()})
                for one in samples
            ]
            deliver(key, made)

        await generate(engine, requests, changed)

    monkeypatch.setattr(ScriptedEngine, "generate", other)
    with pytest.raises(WorkerError, match=reason):
        measure(measured_config(resolve(config), tmp_path), tmp_path, lambda what: None)


def test_the_first_update_has_the_whole_learning_rate(config: str, tmp_path: Path) -> None:
    given = ("learning_rate=1e-6", "learning_rate_schedule_steps=500", "warmup_steps_fraction=0.1")
    content = measured_config(resolve(config, given), tmp_path).content
    assert (content["steps"], content["learning_rate_schedule_steps"]) == (2, 2)
    assert (content["learning_rate"], content["warmup_steps_fraction"]) == (1e-3, 0.0)
    assert "warmup_steps_fraction" not in measured_config(resolve(config), tmp_path).content


def test_a_trainer_that_shows_too_little_is_an_error(config, tmp_path, monkeypatch) -> None:
    def measured() -> None:
        measure(measured_config(resolve(config), tmp_path), tmp_path, lambda what: None)

    def publishes(trainer: BigramTrainer, port) -> None:
        for step in range(3):
            port.publish(step, trainer.first_weights(), None)

    monkeypatch.setattr(BigramTrainer, "run", publishes)
    with pytest.raises(RlaxError, match="did not give its signals the first two batches"):
        measured()
    monkeypatch.setattr(BigramTrainer, "run", lambda trainer, port: None)
    with pytest.raises(RlaxError, match="ended before its second update"):
        measured()


def test_an_update_that_shows_nothing_passes_nothing() -> None:
    cells = table(1e-6)
    verdict = judge(cells, FLOAT32, exact=True)
    little = Numerics(cells, FLOAT32, verdict, moved=1e-5, refused="", seconds=1.0)
    assert not document(little)["verdict"]["passes"]
    assert document(little)["verdict"]["text"].startswith("the update was too little")
    cells[0] = Cell("prefill", 0, 9, 1e-6, 1e-6, np.inf)
    found = Numerics(cells, FLOAT32, verdict, moved=np.inf, refused="", seconds=1.0)
    assert json.loads(json.dumps(document(found), allow_nan=False))["table"][0]["max"] is None
    assert document(found)["moved"] is None


def test_an_engine_without_log_probs_is_an_error(config: str) -> None:
    given = resolve(config, ("rlax.rollouts.engine={name: scripted, logprobs: false}",))
    with pytest.raises(ConfigError, match=r"rlax\.rollouts\.engine\.name .* reports no log-probs"):
        numerics.check_numerics(given, Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("rlax.logged_samples.path=/data", "has no rollout engine for --numerics"),
    ],
)
def test_a_config_that_cannot_be_measured_starts_nothing(config, argument, message) -> None:
    given = resolve(config, ("rlax.environment={name: single_turn}", argument))
    with pytest.raises(ConfigError, match=message):
        numerics.check_numerics(given, Console(file=io.StringIO()))
