"""The tracker of the docs, which ``rlax new-plugin`` copies, has each step once."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from installs import on_path

from rlax_plugin.commands.scaffold import write_package
from rlax_plugin.config import NoOptions


@pytest.fixture
def build(tmp_path: Path):
    """Makes a tracker, as each process of a run does."""
    write_package("te_tracker", "tracker", tmp_path)
    with on_path(tmp_path / "te_tracker" / "src"):
        module = importlib.import_module("te_tracker")
        (extension,) = module.rlax_register_tracker().values()
        (tmp_path / "run").mkdir()
        context = SimpleNamespace(run_dir=tmp_path / "run")
        yield lambda: extension.build(NoOptions(), context)


def rows(tmp_path: Path) -> list[list[str]]:
    (file,) = (tmp_path / "run").iterdir()
    return [line.split(",") for line in file.read_text().splitlines()]


def log(tracker, *steps: int, **metrics: float) -> None:
    for step in steps:
        tracker.log(step, {"reward/mean": step / 10, "time/step_s": 0.5} | metrics)
    tracker.close()


def test_a_continued_run_has_each_metric_of_each_step_once(build, tmp_path: Path) -> None:
    log(build(), 1, 2, 3, 4, 5)
    log(build(), 4, 5, 6)  # from a checkpoint of step 3 on
    late = build()
    late.log(6, {"evaluation/pass@1": 0.25})  # only an evaluation was still to be done
    late.close()
    names = ("reward/mean", "time/step_s")
    expected = [[str(step), name] for step in range(1, 7) for name in names]
    assert [row[:2] for row in rows(tmp_path)] == [*expected, ["6", "evaluation/pass@1"]]


def test_a_row_that_a_kill_has_cut_off_is_written_again(build, tmp_path: Path) -> None:
    log(build(), 1, 2, 3)
    (file,) = (tmp_path / "run").iterdir()
    file.write_text(file.read_text()[:-4])  # of 3,time/step_s,0.5
    log(build(), 2, 3, 4)
    names = ("reward/mean", "time/step_s")
    expected = [[str(step), name] for step in range(1, 5) for name in names]
    assert [row[:2] for row in rows(tmp_path)] == expected
    assert [float(row[2]) for row in rows(tmp_path)[4:6]] == [0.3, 0.5]
