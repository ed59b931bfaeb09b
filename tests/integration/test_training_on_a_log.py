"""A run trains on what another has recorded: without workers, and whatever kills it, the same.

Real processes; the model is the toy of ``rlax_plugin.testing``.
"""

import json
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import finished
from runs import CONFIG, DEADLINE_S, Records, digests

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit

STEPS = 8
SETTINGS = (
    "run_name=offline",
    "rlax.curation.filters=[]",
    "rlax.evaluation.problems=0",
    "rlax.trainer.checkpoint_every=3",
    f"steps={STEPS}",
)
# One after the other, each of what goes on from the last one.
KILLS = ("samples-written:2", "commit-ended:2", "step-trained:1", "snapshot-written:1")
LAST = "run-finished:1"  # nothing is left to train then


def train(directory: Path, *settings: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    command = ("train", CONFIG, *settings)
    return finished(*command, cwd=directory, kill_at=kill_at, timeout_s=DEADLINE_S)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    few = ("run_name=log", "rlax.evaluation.problems=0", "steps=4")
    done = train(directory, *few)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "runs/log"


def logged_groups(run: Path) -> dict[int, list[tuple[list[int], list[float], float]]]:
    """Every group of a run: tokens, log-probs and reward of each sample."""
    found = {}
    for segment, _ in journal.read(RunFiles(run)):
        for one in journal.read_samples(RunFiles(run), segment):
            pairs = zip(one.group.sampled, one.group.rewards.tolist(), strict=True)
            found[one.group.id] = [(s.tokens.tolist(), s.logprobs.tolist(), r) for s, r in pairs]
    return found


@pytest.mark.ci
def test_a_killed_run_ends_with_the_same_weights(log, tmp_path):
    settings = (*SETTINGS, f"rlax.logged_samples.path={log}", "rlax.objective.preset=aipo")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    done = train(undisturbed, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    for point in (*KILLS, LAST):
        assert train(killed, *settings, kill_at=point).returncode == -9, point
    done = train(killed, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = Records(undisturbed, "offline"), Records(killed, "offline")
    expected = digests(first.dir)
    assert sorted(expected) == list(range(STEPS + 1))
    assert all(len(found) == 1 for found in expected.values())
    assert len(set(map(frozenset, expected.values()))) == STEPS + 1  # every step learns
    assert digests(second.dir) == expected
    for run in (first, second):
        report = audit(RunFiles(run.dir))
        assert report.violation is None, report.violation
    assert report.figures.restarts == len(KILLS)
    # Every group once, in the order of the log, and from its beginning again; with its log-probs.
    groups = list(logged_groups(log).values())
    trained = list(logged_groups(first.dir).values())
    assert trained == [groups[i % len(groups)] for i in range(4 * STEPS)]
    steps = first.steps()
    assert {step["staleness/max"] for step in steps} == {0}
    assert {step["rollout/workers"] for step in steps} == {0}
    assert "objective/chi_squared" in steps[0] and "logprob_gap/p95" not in steps[0]


def test_a_log_that_changes_is_refused_on_resume(log, tmp_path):
    settings = (*SETTINGS, "rlax.objective.preset=awr")
    where = f"rlax.logged_samples.path={tmp_path / 'log.parquet'}"
    tables = [pq.read_table(path) for path in sorted(log.glob("samples/*/*.parquet"))]
    rows = [row for one in tables for row in one.to_pylist() if row["state"] == "trained"]
    kept = [
        {"group": row["group"], "prompt": row["prompt"], "tokens": row["tokens"], "reward": r}
        for row, r in zip(rows, np.linspace(0, 1, len(rows)).tolist(), strict=True)
    ]
    write(tmp_path / "log.parquet", kept)
    done = train(tmp_path, *settings, where, kill_at="step-trained:4")
    assert done.returncode == -9, done.stdout + done.stderr
    write(tmp_path / "log.parquet", [kept[0] | {"reward": 0.125}, *kept[1:]])
    done = train(tmp_path, *settings, where)
    assert done.returncode == 2
    assert "rlax.logged_samples.path" in done.stderr and "has other prompts" in done.stderr
    write(tmp_path / "log.parquet", kept)
    done = train(tmp_path, *settings, where)
    assert done.returncode == 0, done.stdout + done.stderr
    run = Records(tmp_path, "offline")
    assert audit(RunFiles(run.dir)).violation is None
    # Nothing is said about log-probs that the table lacks.
    step = json.loads((run.dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert "objective/chi_squared" not in step
    assert np.isfinite(list(step.values())).all()


def write(path: Path, rows: list[dict]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)
