"""Weights that arrive in the middle of samples, in whole runs of real processes."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterable

import pytest
from runs import Run

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

MAX_STALENESS = 3
SETTINGS = (
    "rlax.staleness.reload_every=1",
    f"rlax.staleness.max_staleness={MAX_STALENESS}",
    "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
    "rlax.objective.old_policy=proximal",
    "rlax.rollouts.max_new_tokens=12",
    "rlax.rollouts.engine.token_s=0.02",
    "rlax.rollouts.progress_s=0.02",
    "rlax.evaluation.problems=2",
)


def trained(run: Run) -> list[dict]:
    """The trained samples of a run, after what must be true of every run."""
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation
    samples = [row for row in run.rollouts() if row["refused"] is None]
    staleness = max(row["step"] - min(row["versions"]) for row in samples)
    assert staleness == run.summary()["max_staleness_seen"] <= MAX_STALENESS
    assert staleness > 1  # the run did go off-policy
    return samples


def mixed(samples: Iterable[dict]) -> list[dict]:
    return [row for row in samples if len(set(row["versions"])) > 1]


@pytest.mark.parametrize("mode", ["continue", "discard"])
def test_samples_go_on_with_new_weights_or_begin_again(tmp_path, mode):
    run = Run(tmp_path, *SETTINGS, f"rlax.rollouts.on_new_weights={mode}")
    status, out = run.end()
    assert status == 0, out
    assert run.summary()["steps"] == 10
    found = mixed(trained(run))
    assert bool(found) == (mode == "continue")
    for row in found:
        assert all(old <= new for old, new in itertools.pairwise(row["versions"]))


def test_another_worker_finishes_what_a_killed_one_began(tmp_path):
    slow = ("rlax.rollouts.engine.token_s=0.1", "steps=8")
    run = Run(tmp_path, *SETTINGS, *slow, "rlax.rollouts.on_new_weights=continue")
    run.until(lambda: len(run.steps()) >= 2, "two steps")
    time.sleep(0.4)  # what is issued then takes about a second, and is reported every 0.1 s
    run.workers()[0].send_signal(signal.SIGKILL)
    status, out = run.end()
    assert status == 0, out
    summary = run.summary()
    assert summary["steps"] == 8
    assert summary["groups_reissued"] > 0 and summary["worker_restarts"] == 1
    shared = [row for row in trained(run) if row["worker"].count("+") == 1]
    assert shared
    assert all(row["attempt"] > 1 for row in shared)
    assert {name for row in shared for name in row["worker"].split("+")} == {"local-0", "local-1"}
