"""Weights that arrive in the middle of samples, in a run whose worker processes are killed."""

import itertools
import signal
from collections.abc import Iterable

from runs import TWO_WORKERS, Run

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

MAX_STALENESS = 3
SETTINGS = (
    "rlax.staleness.reload_every=1",
    f"rlax.staleness.max_staleness={MAX_STALENESS}",
    "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
    "rlax.objective.old_policy=proximal",
    "rlax.rollouts.max_new_tokens=12",
    "rlax.rollouts.engine.token_s=0.02",
    "rlax.rollouts.engine.reads_memory=true",
    "rlax.rollouts.progress_s=0.02",
    "rlax.evaluation.problems=2",
)


def trained(run: Run) -> list[dict]:
    """The trained samples of a run, after what must be true of every run."""
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation
    samples = run.trained()
    staleness = max(row["step"] - min(row["versions"]) for row in samples)
    assert staleness == run.summary()["max_staleness_seen"] <= MAX_STALENESS
    assert staleness > 1  # the run did go off-policy
    return samples


def mixed(samples: Iterable[dict]) -> list[dict]:
    return [row for row in samples if len(set(row["versions"])) > 1]


def test_samples_go_on_with_new_weights_also_on_another_worker(tmp_path):
    slow = (TWO_WORKERS, "rlax.rollouts.engine.token_s=0.1", "steps=1000")
    run = Run(tmp_path, *SETTINGS, *slow, "rlax.rollouts.on_new_weights=continue")

    def passed_on() -> list[dict]:
        """What one worker began and another one finished."""
        return [row for row in run.trained() if len(row["workers"]) == 2]

    def both_at_work_after(step: int) -> bool:
        newest = run.steps()[-1:]
        return bool(newest) and newest[0]["step"] >= step and newest[0]["rollout/workers"] == 2

    run.until(lambda: both_at_work_after(2), "two workers at work")
    kills = 0
    while not passed_on() and kills < 5:  # one that has reported nothing passes nothing on
        run.until(run.workers, "a worker")[0].send_signal(signal.SIGKILL)
        kills += 1
        after = len(run.steps()) + 4
        run.until(lambda after=after: both_at_work_after(after), "another worker at work")
    run.process.send_signal(signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    summary = run.summary()
    assert summary["groups_reissued"] > 0 and summary["worker_restarts"] == kills
    lost = sum(step.get("episode_ended/worker_lost", 0) for step in run.steps())
    assert 0 < lost <= summary["groups_reissued"]
    samples = trained(run)
    shared = passed_on()
    assert shared
    assert all(row["attempt"] > 1 for row in shared)
    assert {name for row in shared for name in row["workers"]} == {"local-0", "local-1"}
    assert mixed(samples)
    for row in mixed(samples):
        assert all(old <= new for old, new in itertools.pairwise(row["versions"]))
