"""When trainer and samplers have disagreed for too long, or one worker does."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from dispatching import answer, join, make

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.config import Objective
from rlax_plugin.rollout.fleet.fleet import FleetListener
from rlax_plugin.run.controller.limits import (
    GAP,
    GAP_QUARANTINE,
    GAP_STEPS,
    GAP_TOKENS,
    GAP_WARN,
    GroupGap,
    WorkerGaps,
    gap_error,
    gaps_of_workers,
)
from rlax_plugin.run.metrics.run_stats import RunStats
from rlax_plugin.run.metrics.step import FinishedStep, StepStats
from rlax_plugin.testing import make_batch, make_episode, make_group, make_sampled
from rlax_plugin.training.objective.diagnostics import GROUP_GAPS

NAN = float("nan")


def error_after(objective: Objective, *p95: float | None) -> TrainingError | None:
    """The error of the last step. None: no token of that step was of staleness 1."""
    stats, error = RunStats({GAP: GAP_STEPS}), None
    for value in p95:
        metrics = {"reward/mean": 0.5} | ({} if value is None else {GAP: value})
        stats.add(metrics)
        error = gap_error(metrics, stats.newest(GAP), objective)
    return error


@pytest.mark.parametrize(
    ("p95", "ends"),
    [
        ((), False),
        ((0.2, 0.2), False),
        ((0.2, 0.2, 0.2), True),
        ((0.2, 0.2, 0.1), False),  # at the limit is not above it
        ((0.2, 0.1, 0.2, 0.2), False),
        ((0.0, 0.2, 0.3, 0.4), True),
        ((0.2, None, 0.2, None, 0.2), True),
        ((0.2, 0.2, 0.2, None), False),  # said at the step before
        ((NAN, float("inf"), 0.2), True),
    ],
)
def test_it_ends_a_run_after_so_many_steps_in_a_row(p95: tuple[float, ...], ends: bool) -> None:
    error = error_after(Objective(max_gap=0.1), *p95)
    assert (error is not None) == ends


def test_the_error_names_figures_and_keys() -> None:
    error = error_after(Objective(max_gap=0.01), 0.0, 0.25, 0.5, 0.75)
    assert "logprob_gap/p95 was 0.25, 0.5, 0.75 nats in the last 3 steps" in str(error)
    assert "above rlax.objective.max_gap = 0.01; raise" in str(error)


def test_it_is_off_by_default() -> None:
    assert error_after(Objective(), *[100.0] * 9) is None


def group_of(number: int, *workers: tuple[str, ...], temperature: float | None = None) -> Any:
    """A group with a sample of each of these workers."""
    episodes = [
        make_episode(make_sampled(workers=names), index=i) for i, names in enumerate(workers)
    ]
    group = make_group([0.0] * len(workers), id=number, episodes=tuple(episodes))
    return dataclasses.replace(group, temperature=temperature)


def test_a_gap_is_the_workers_that_alone_has_generated_the_group() -> None:
    groups = [
        group_of(3, ("a",), ("a",)),
        group_of(4, ("b",), ("b",), temperature=0.25),
        group_of(5, ("a",), ("b",)),
        group_of(6, ("a", "b"), ("a",)),
        group_of(8, ("a",), ("a",), temperature=2.0),
    ]
    figures = np.zeros((2, 8))
    figures[:, 1:6] = [[1.5, 40, 1000, 1000, 2.5], [10, 8, 9, 9, 30]]
    done = FinishedStep(
        make_batch(1, groups), StepStats(), dict(zip(GROUP_GAPS, figures, strict=True))
    )
    rest = [GroupGap("b", 4, 10.0, 8.0), GroupGap("a", 8, 2.5, 30.0)]
    assert gaps_of_workers(done, 1.0) == [GroupGap("a", 3, 1.5, 10.0), *rest]
    assert gaps_of_workers(done, 0.5) == [GroupGap("a", 3, 0.75, 10.0), *rest]
    done.metrics = {}  # of a trainer that does not say
    assert gaps_of_workers(done, 1.0) == []


class Quarantined(FleetListener):
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def worker_quarantined(self, name: str, reason: str) -> None:
        self.said.append((name, reason))


def gaps_after(means: Mapping[str, float], tokens: float = GAP_TOKENS) -> list[GroupGap]:
    """A group of each worker, issued after the first look at the fleet."""
    return [GroupGap(name, 7, mean * tokens, tokens) for name, mean in means.items()]


async def test_a_worker_whose_log_probs_are_not_the_trainers_is_named_then_quarantined() -> None:
    fleet, dispatcher, lost = make()
    notes, listener = [], Quarantined()
    fleet.listeners.append(listener)
    for name in ("near", "apart", "far"):
        await join(fleet, name, answer)
    workers, gaps = dict(fleet.workers), WorkerGaps(fleet, notes.append)
    gaps.take([], 7)
    few = GAP_TOKENS / 2
    gaps.take(gaps_after({"far": 99.0}, few), 9)  # too few to judge by
    assert listener.said == notes == []
    for _ in range(2):
        gaps.take(gaps_after({"near": GAP_WARN, "apart": GAP_QUARANTINE, "gone": 99.0}), 9)
    apart = "the log-probs of its samples differ by 5 nats a token from the trainer's"
    assert notes == [f"warning: worker apart: {apart}, more than 1"]  # once
    assert workers["apart"].suspicion == {GAP: f"{apart}, more than 1"}
    assert workers["near"].suspicion == {} and listener.said == []
    gaps.take([*gaps_after({"apart": 0.01}), *gaps_after({"far": 1.0}, few)], 9)
    assert workers["apart"].suspicion == {}
    far = "the log-probs of its samples differ by 50 nats a token from the trainer's"
    assert listener.said == [("far", f"{far}, more than 1 and than 5")]
    assert fleet.workers.keys() == {"near", "apart"} and not workers["far"].trusted
    assert lost == [f"far: quarantined: {far}, more than 1 and than 5"]
    await dispatcher.close()


async def test_no_worker_is_quarantined_where_the_trainer_may_be_wrong() -> None:
    fleet, dispatcher, lost = make()
    notes: list[str] = []
    for name in ("a", "b", "c"):
        await join(fleet, name, answer)
    gaps = WorkerGaps(fleet, notes.append)
    gaps.take([], 7)
    gaps.take(gaps_after({"c": 0.01}), 9)
    fleet.lose(fleet.workers["c"], "it has ended")  # that it agreed does not count any more
    for _ in range(2):
        gaps.take(gaps_after({"a": 9.0, "b": 9.0}), 9)
    assert fleet.workers.keys() == {"a", "b"} and len(lost) == 1 and len(notes) == 2
    gaps.take(gaps_after({"a": 0.01, "b": 9.0}), 9)
    assert fleet.workers.keys() == {"a"}
    await dispatcher.close()


async def test_a_worker_does_not_pay_for_a_process_that_had_its_name_before() -> None:
    fleet, dispatcher, lost = make()
    notes: list[str] = []
    for name in ("a", "b"):
        await join(fleet, name, answer)
    gaps = WorkerGaps(fleet, notes.append)
    gaps.take(gaps_after({"a": 0.01, "b": 9.0}), 8)  # of recorded batches
    gaps.take(gaps_after({"a": 0.01, "b": 9.0}), 9)
    assert notes == [] and fleet.workers.keys() == {"a", "b"}
    late = [GroupGap(name, 8, mean * 64, 64) for name, mean in (("a", 0.01), ("b", 2.0))]
    gaps.take(late, 9)
    assert len(notes) == 1
    fleet.lose(fleet.workers["b"], "it has ended")
    await join(fleet, "b", answer, process="another")
    gaps.take([GroupGap("b", 8, 9.0 * 64, 64)], 12)  # the first look at the new process
    gaps.take([GroupGap("b", 11, 9.0 * 64, 64)], 14)
    assert fleet.workers.keys() == {"a", "b"} and fleet.workers["b"].suspicion == {}
    gaps.take([GroupGap("b", 12, 9.0 * 64, 64)], 15)
    assert fleet.workers.keys() == {"a"} and len(lost) == 2
    await dispatcher.close()
