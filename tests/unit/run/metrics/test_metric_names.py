"""The table of metrics: no name outside it, none in it that does not exist."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rlax_plugin.run.evaluation.measures import Outcomes, measures
from rlax_plugin.run.metrics import names as metric_names
from rlax_plugin.run.metrics.names import METRICS, find
from rlax_plugin.tools.cli import app

ROOT = Path(__file__).parents[4]
SOURCES = ("rlax_plugin", "plugins", "maxtext_overrides")
STAGES = {stage.name for stage in metric_names.STAGES}
NAMED = re.compile(rf"({'|'.join(STAGES - {'evaluation', 'evaluation_<set>'})})/\w*[a-z0-9]")


def strings(path: Path) -> Iterator[str]:
    """Every string in a module, docstrings included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_name_has_two_parts_and_one_row() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names) > 70
    for metric in METRICS:
        assert re.fullmatch(r"[a-z_<>]+/[a-z0-9_<>]+", metric.name)
        assert metric.unit and metric.meaning and metric.when
    rows = [line for line in metric_names.page().splitlines() if line.startswith("| `")]
    assert len(names) == len(rows)  # none is left out because of its form


def test_every_name_in_the_code_is_in_the_table() -> None:
    written = {
        (str(path.relative_to(ROOT)), text)
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.py")
        if "contracts" not in path.parts  # whose names are made up
        for text in strings(path)
        if NAMED.fullmatch(text)
    }
    assert len(written) > 40
    unknown = {
        (path, name) for path, name in written if (row := find(name)) is None or row.is_pattern
    }
    assert not unknown, "give each a row of its own in docs/metrics.md"


def test_every_scalar_of_maxtexts_step_is_in_the_table() -> None:
    spec = importlib.util.find_spec("maxtext")  # found, not imported: that takes 20 s
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    sources = [folder / "trainers/pre_train/train.py", folder / "common/metric_logger.py"]
    reported = {
        text for path in sources for text in strings(path) if re.fullmatch(r"learning/\w+", text)
    }
    own = {m.name for m in METRICS if m.name.startswith("learning/") and not m.is_pattern}
    assert own <= reported and all(find(name) for name in reported)


def test_every_measure_of_an_evaluation_is_in_the_table() -> None:
    rewards_bn, answers_bn = np.array([[1.0, 0.0], [0.0, 1.0]]), [["a", "b"], ["a", "b"]]
    outcomes = Outcomes(rewards_bn, np.ones((2, 2), int), rewards_bn > 1, answers_bn)
    found = measures(outcomes, pass_threshold=0.5, k=(1, 2), majority_k=(1,), resamples=10, seed=0)
    assert len(found) == 8
    for name in found:
        assert find(f"evaluation/{name}") and find(f"evaluation_hard/{name}")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("time/step_s", "time/step_s"),
        ("objective/entropy", "objective/entropy"),
        ("objective/of_a_strangers_slot", "objective/<name>"),
        ("learning/moe_bias_update_norm_layer_3", "learning/<name>"),
        ("evaluation/pass_at_16", "evaluation/pass_at_<k>"),
        ("evaluation_hard sums/majority_at_8", "evaluation_<set>/majority_at_<k>"),
        ("time/step", None),
        ("reward/Mean", None),
        ("objective/a/b", None),
        ("evaluation/pass_rate", None),
        ("entropy", None),
    ],
)
def test_finding_a_row(name: str, row: str | None) -> None:
    found = find(name)
    assert (found.name if found else None) == row


def run(*argv: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *argv])
    return result.exit_code, result.output


def test_the_command_lists_searches_and_rejects() -> None:
    for stage in metric_names.STAGES[:2]:
        _, listed = run(stage.name)
        assert all(metric.name in listed for metric in stage.metrics)
    _, ages = run("staleness/max")
    assert "staleness/max" in ages and "time/wait_s" not in ages
    _, pattern = run("evaluation_hard/pass_at_16")
    assert "evaluation_<set>/pass_at_<k>" in pattern
    _, named = run("wait_s")  # the last word
    assert "time/wait_s" in named and "time/step_s" not in named
    _, meant = run("longest sample scored")  # in no name, but in a meaning
    assert "issued_max" in meant
    status, error = run("stalenes/max")
    assert status == 2 and "did you mean 'staleness/max'" in error
