"""Collects the figures of a run from which its verdict is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlax_plugin.config import RlaxSection
from rlax_plugin.evaluation.result import Evaluated
from rlax_plugin.evaluation.verdict import Change, Figures, Pair, paired_change, verdict
from rlax_plugin.metrics.run_stats import RunStats

_STEPS = 10  # at the beginning and at the end, over which figures are averaged


def verdict_of(
    before: Evaluated | None,
    after: Evaluated | None,
    stats: RunStats,
    section: RlaxSection,
    maxtext: Mapping[str, Any],
    steps: int,
) -> dict[str, Any] | None:
    """Returns the verdict for ``summary.json``; None if the run cannot be judged.

    Args:
      before, after: evaluations before and after training.
      stats: of all steps.
      maxtext: MaxText's keys.
      steps: number of steps that were trained.
    """
    if before is None or after is None or (change := _change(before, after, section)) is None:
        return None
    held_out = next(iter(before.sets))
    figures = _figures(before, after, stats, section, maxtext, steps)
    return {
        "outcome": change.outcome,
        "set": held_out,
        "problems": change.problems,
        "pass_at_1_change": change.after - change.before,
        "ci95": list(change.ci95),
        "sentence": verdict(figures, change, held_out),
    }


def _change(before: Evaluated, after: Evaluated, section: RlaxSection) -> Change | None:
    held_out = next(iter(before.sets))
    samples = {e.n for found in (before, after) for e in found.sets.get(held_out, {}).values()}
    if len(samples) != 1:
        return None
    return paired_change(
        before.passed.get(held_out, ()),
        after.passed.get(held_out, ()),
        samples.pop(),
        resamples=section.evaluation.bootstrap,
        seed=section.seed,
    )


def _figures(
    before: Evaluated,
    after: Evaluated,
    stats: RunStats,
    section: RlaxSection,
    maxtext: Mapping[str, Any],
    steps: int,
) -> Figures:
    objective, rollouts = section.objective, section.rollouts
    settings = {
        "rlax.evaluation.problems": section.evaluation.problems,
        "rlax.objective.entropy_coefficient": objective.entropy_coefficient,
        "rlax.objective.kl.coefficient": objective.kl.coefficient,
        "rlax.objective.overlong.penalty": objective.overlong.penalty,
        "rlax.rollouts.group_size": rollouts.group_size,
        "rlax.rollouts.max_new_tokens": rollouts.max_new_tokens,
        "rlax.staleness.max_staleness": section.staleness.max_staleness,
        **{key: maxtext[key] for key in ("dtype", "learning_rate", "steps") if key in maxtext},
    }
    return Figures(
        updates=steps * objective.updates_per_step,
        learning_rate=stats.largest("learning/current_learning_rate"),
        entropy=_ends(stats, "objective/entropy"),
        reward=_ends(stats, "reward/mean"),
        length=_measured(before, after, "length_mean"),
        truncated=_measured(before, after, "truncated"),
        reward_errors=_measured(before, after, "reward_errors"),
        equal_groups=stats.mean("batch/groups_equal"),
        staleness=stats.mean("staleness/mean"),
        gap_nats=stats.mean("logprob_gap/mean"),
        kl_nats=stats.mean("objective/kl_k3"),
        settings=settings,
    )


def _ends(stats: RunStats, name: str) -> Pair | None:
    """Returns the means over the first and over the last steps; None if they overlap."""
    if stats.count(name) < 2 * _STEPS:
        return None
    first = stats.first_mean(name, _STEPS)
    last = stats.last_mean(name, _STEPS)
    return None if first is None or last is None else (first, last)


def _measured(before: Evaluated, after: Evaluated, measure: str) -> Pair | None:
    if measure not in before.main or measure not in after.main:
        return None
    return before.main[measure].value, after.main[measure].value
