"""Imitating a table of logged samples is training on the same demonstrations, step by step."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sets import prepare_here, write_lines
from processes import finished
from rlax_maxtext import demonstrations
from rlax_maxtext.config_agreement import demonstrations as read_demonstrations
from rlax_maxtext.options import TrainerOptions

from rlax_plugin.api import BuildContext, RunFiles
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import resolve
from rlax_plugin.config.validation import validate
from rlax_plugin.tools.commands.audit import audit

ROOT = Path(__file__).parents[2]
CONFIG = "tests/configs/maxtext.yml"
ROWS, EPOCHS = 8, 2
FEW = "test_problems: 5, validation_problems: 5"

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def settings(directory: Path, name: str) -> list[str]:
    return [
        f"base_output_directory={directory}",
        f"run_name={name}",
        f"rlax.prompt_source={{name: arithmetic, digits: 1, {FEW}}}",
        "rlax.rewards=[{name: exact_answer}]",
        "rlax.curation={sampler: {name: shuffled}, filters: []}",
    ]


def test_the_losses_are_those_of_demonstrations(tmp_path, monkeypatch):
    prepare_here(monkeypatch)
    problems = [(a, b) for a in range(4) for b in range(4)]
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in problems]
    data = write_lines(tmp_path / "sums.jsonl", rows)
    warm = (
        f"{{enabled: true, data: {{name: jsonl, path: {data}, chat: false}}, batch_rows: {ROWS}, "
        f"epochs: {EPOCHS}, learning_rate: 3.e-3}}"
    )
    taught = [*settings(tmp_path, "taught"), "steps=0", f"rlax.trainer.warm_start={warm}"]
    done = finished("train", CONFIG, *taught, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = tmp_path / "taught/prepared/warm_start/metrics.json"
    expected = [loss for _, loss in json.loads(metrics.read_text())["loss"]]

    steps = write_table(tmp_path / "sums.parquet", taught)
    assert steps == len(expected) == EPOCHS * len(rows) // ROWS
    logged = (
        *settings(tmp_path, "logged"),
        f"steps={steps}",
        "learning_rate=3.e-3",
        "warmup_steps_fraction=0.0",
        "learning_rate_final_fraction=1.0",
        f"per_device_batch_size={ROWS}",
        f"rlax.rollouts.groups_per_step={ROWS}",
        "rlax.rollouts.group_size=1",
        "rlax.objective.preset=behaviour_cloning",
        f"rlax.logged_samples.path={tmp_path / 'sums.parquet'}",
    )
    done = finished("train", CONFIG, *logged, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "logged/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["learning/loss"] for line in lines]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert losses[-1] < losses[0] - 0.1
    assert audit(RunFiles(tmp_path / "logged")).violation is None


def write_table(path: Path, taught: list[str]) -> int:
    """Writes the demonstrations in the order in which they train; returns the number of steps."""
    config = resolve(str(ROOT / CONFIG), taught)
    registry, section = registry_for(config.section), config.section

    def part(kind, choice, key):
        return registry.part(kind, choice, key, context)

    context = BuildContext(path.parent, 0, section, config, str(path.parent), part=part)
    options = validate(TrainerOptions, section.trainer.options, "rlax.trainer").warm_start
    table = read_demonstrations(context, options).train
    epochs = demonstrations.Epochs(
        (table.lengths - 1).tolist(),
        length=section.row_tokens,
        sequences_per_row=1,
        batch_rows=ROWS,
        epochs=EPOCHS,
        seed=section.seed,
    )
    steps = range(1, epochs.steps + 1)
    order = [index for step in steps for row in epochs.rows(step) for index in row]
    tokens = [table[index].tokens.tolist() for index in order]
    begins = [table.spans_at(index)[0][0] for index in order]
    integers = pa.list_(pa.int32())
    columns = {
        "prompt_tokens": pa.array([t[:b] for t, b in zip(tokens, begins, strict=True)], integers),
        "tokens": pa.array([t[b:] for t, b in zip(tokens, begins, strict=True)], integers),
        "reward": pa.array([1.0] * len(order)),
    }
    pq.write_table(pa.table(columns), path)
    return epochs.steps
