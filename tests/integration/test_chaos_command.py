"""Short runs whose processes are killed and frozen at events that their seeds choose."""

from __future__ import annotations

import importlib.util
import json
import os
import stat

import pytest
from processes import finished
from runs import CONFIG, HELPERS, plugins

SETTINGS = (
    plugins("fickle"),
    "steps=40",
    "rlax.environment={name: fickle, share: 0}",
    "rlax.episodes={max_turns: 3, max_tokens: 24}",
    "rlax.rollouts.engine={name: scripted, latency_s: 0.02, token_s: 0.01, reads_memory: true}",
    "rlax.launcher={name: local, workers: 2, max_restarts: 100}",
    "rlax.trainer={name: bigram, checkpoint_every: 3, learning_rate: 0.1}",
    "rlax.curation.max_refill=50",
    "rlax.deadlines={lease_s: 3, drain_s: 5}",
)
# Each episode has three turns.
DETERMINISTIC = (
    "rlax.deterministic=true",
    "rlax.environment={name: calculator, begin: '', end: '', result: '0', after: '1', "
    "max_calls: 2}",
    "rlax.episodes={max_turns: 3, max_tokens: 30}",
)
CONTINUED = (
    "rlax.rollouts.on_new_weights=continue",
    "rlax.rollouts.progress_s=0.1",
    "rlax.batches={rows: 16, sequences_per_row: 4, tokens: 60}",
    "rlax.staleness.max_staleness=3",
    "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
    "rlax.objective.old_policy=proximal",
)
CLOCKS = pytest.mark.skipif(
    importlib.util.find_spec("libfaketime") is None, reason="needs pip install libfaketime"
)
NODES = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("more", "options"),
    [
        pytest.param(DETERMINISTIC, ("--seed", "1"), marks=pytest.mark.long),
        (
            CONTINUED,
            ("--seed", "124", "--parameter-server", "--fault", "network", "--fault", "store"),
        ),
        pytest.param(
            (*DETERMINISTIC, "steps=12"),
            ("--seed", "3", "--fault", "clock", "--spare-trainer"),
            marks=[pytest.mark.long, CLOCKS],
        ),
        pytest.param(
            ("rlax.deadlines.startup_s=300",),
            ("--seed", "41", "--ray-nodes", "2", "--spare-trainer", "--patience-s", "120"),
            marks=[pytest.mark.long, NODES],
        ),
    ],
    ids=["deterministic", "continued", "clocks", "nodes"],
)
def test_a_run_survives(more, options, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    arguments = ("chaos", CONFIG, *SETTINGS, *more, "--kills", "4", "--json")
    arguments += ("--out", str(tmp_path / "out"), "--patience-s", "60", *options)
    done = finished(*arguments, cwd=tmp_path, timeout_s=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700  # it has the logs
    (verdict,) = json.loads(done.stdout)
    reached = [one for one in verdict["blows"] if one["reached"]]
    assert verdict["survived"] and verdict["findings"] == [] and len(reached) >= 2
    again = finished(*arguments, cwd=tmp_path)
    assert again.returncode == 2 and "is a run already: remove it" in again.stderr
