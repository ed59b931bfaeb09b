"""The verdict on a run: its held-out evaluation before and after, and likely causes of no gain.

docs/evaluation.md has the same thresholds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.run.evaluation.result import Evaluated
from rlax_plugin.run.evaluation.statistics import Estimate, bootstrap_interval
from rlax_plugin.run.metrics.run_stats import RunStats

Outcome = Literal["better", "unchanged", "worse"]
Pair = tuple[float, float]

MOST_CAUSES = 3
REWARD_ERRORS = 0.05  # rise of the share of evaluated samples whose reward failed
GAP_NATS = 0.02  # mean of logprob_gap/mean
COLLAPSED, GROWN = 0.2, 2.0  # entropy at the end, as a multiple of that at the beginning
TRUNCATED, TRUNCATED_RISE = 0.5, 0.1  # share of evaluated samples after training; and its rise
LONGER, SHORTER = 1.5, 0.5  # mean length after training, as a multiple of that before
EQUAL_GROUPS = 0.5  # share of trained groups whose samples have equal rewards
REWARD_FALL = 0.2  # of the training reward, relative to its beginning
KL_NATS = 0.1  # mean of objective/kl_k3
LEAST_RATE = 1e-7  # of the largest learning rate of the run
STALENESS = 4.0  # mean of staleness/mean
FEW_UPDATES = 50
WIDE = 0.05  # half the width of the interval of the change of pass@1
_ROUNDING = 1e-9
_STEPS = 10  # at most, at the beginning and at the end, over which figures are averaged
_LEAST_STEPS = 4  # of a run with a beginning and an end


class Change(NamedTuple):
    """The change of pass@1 from before to after training, over the same problems.

    Attributes:
      before, after: shares of samples that passed.
      ci95: 95 % interval of the difference, over the choice of problems.
      problems: their number.
    """

    before: float
    after: float
    ci95: Pair
    problems: int

    @property
    def outcome(self) -> Outcome:
        """The direction of the change, or unchanged if the interval contains 0."""
        low, high = self.ci95
        return "better" if low > 0 else "worse" if high < 0 else "unchanged"


class Judged(NamedTuple):
    """A run, in whose figures causes are looked for.

    Attributes:
      stats: of all steps.
      before, after: measures of the main set before and after training.
      maxtext: MaxText's keys.
      steps: number of steps that were trained.
    """

    stats: RunStats
    before: Mapping[str, Estimate]
    after: Mapping[str, Estimate]
    section: RlaxSection
    maxtext: Mapping[str, Any]
    steps: int

    def at(self, key: str) -> str:
        """Returns ``key = value`` of the config, or the key alone."""
        value = self.maxtext.get(key)
        if key.startswith("rlax."):
            value = functools.reduce(getattr, key.split(".")[1:], self.section)
        return key if value is None else f"{key} = {value}"

    def ends(self, name: str) -> Pair | None:
        """Returns the means over the first and over the last steps; None if these are too few."""
        count = self.stats.count(name)
        averaged = min(_STEPS, count // 2)
        first, last = self.stats.first_mean(name, averaged), self.stats.last_mean(name, averaged)
        if count < _LEAST_STEPS or first is None or last is None:
            return None
        return first, last

    def measured(self, measure: str) -> Pair | None:
        """Returns a measure before and after training; None if one of them lacks it."""
        if measure not in self.before or measure not in self.after:
            return None
        return self.before[measure].value, self.after[measure].value


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
      stats, maxtext, steps: see ``Judged``.
    """
    if before is None or after is None or not steps:  # without RL steps nothing has changed
        return None
    if (change := change_of(before, after, section)) is None:
        return None
    held_out = next(iter(before.sets))
    run = Judged(stats, before.main, after.main, section, maxtext, steps)
    several = len(section.environments)
    of = f", the first of {several} environments," if several else ""
    return {
        "outcome": change.outcome,
        "set": held_out,
        "problems": change.problems,
        "pass_at_1_change": change.after - change.before,
        "ci95": list(change.ci95),
        "sentence": sentence_on(run, change, held_out + of),
    }


def change_of(before: Evaluated, after: Evaluated, section: RlaxSection) -> Change | None:
    """Returns the change of pass@1, paired by problem; None if the problems are not the same."""
    held_out = next(iter(before.sets))
    samples = {e.n for found in (before, after) for e in found.sets.get(held_out, {}).values()}
    counts = [np.asarray(found.passed.get(held_out, ()), float) for found in (before, after)]
    if len(samples) != 1 or not 0 < len(counts[0]) == len(counts[1]):
        return None
    first, last = (passed / min(samples) for passed in counts)
    evaluation = section.evaluation
    interval = bootstrap_interval(last - first, resamples=evaluation.bootstrap, seed=section.seed)
    return Change(float(first.mean()), float(last.mean()), interval, len(first))


def causes(run: Judged, change: Change) -> tuple[str, ...]:
    """Returns the causes that the figures support, the most likely first, at most three."""
    return () if change.outcome == "better" else tuple(islice(_causes(run, change), MOST_CAUSES))


def _causes(run: Judged, change: Change) -> Iterator[str]:
    # More updates of the same kind would help no run that got worse.
    if unchanged := change.outcome == "unchanged":
        yield from _too_little(run, change)
    # In this order: failures that make all other figures doubtful come first.
    stats = run.stats
    errors = run.measured("reward_errors")
    if errors is not None and errors[1] - errors[0] >= REWARD_ERRORS - _ROUNDING:
        yield (
            f"rewards failed for {100 * errors[1]:.1f} % of the evaluated samples "
            f"(before {100 * errors[0]:.1f} %), and these count as not passed: see "
            "logs/rewards.log and rlax.rewards"
        )
    if (gap_nats := stats.mean("logprob_gap/mean")) is not None and gap_nats >= GAP_NATS:
        yield (
            f"trainer and rollout engine disagree on log-probs (logprob_gap/mean {gap_nats:.2g} "
            f"nats): use {run.at('dtype')} for both, or add truncated_importance_sampling to "
            "rlax.objective.corrections; rlax check --numerics says at which depth they begin to"
        )
    entropy = run.ends("objective/entropy")
    if entropy is not None and (first := entropy[0]) > 0:
        last, rate = entropy[1], run.at("learning_rate")
        figures = f"objective/entropy {first:.2g} to {last:.2g} nats"
        if last <= COLLAPSED * first:
            more = run.at("rlax.objective.entropy_coefficient")
            yield f"the entropy collapsed ({figures}): raise {more} or lower {rate}"
        elif last >= GROWN * first:
            more = run.at("rlax.objective.kl.coefficient")
            yield f"the entropy grew ({figures}): lower {rate} or raise {more}"
    yield from islice(_lengths(run), 1)
    equal = stats.mean("batch/groups_equal")
    # Logged samples may be imitated, whatever their rewards.
    if equal is not None and equal >= EQUAL_GROUPS and not run.section.trains_on_log:
        yield (
            f"{100 * equal:.0f} % of the trained groups had equal rewards "
            "(batch/groups_equal), which teach nothing: add mixed_outcome to rlax.curation.filters,"
            f" raise {run.at('rlax.rollouts.group_size')}, or choose prompts with rlax curate"
        )
    fast, kl_nats = [], stats.mean("objective/kl_k3")
    first, last = run.ends("reward/mean") or (0.0, 0.0)
    if first > 0 and first - last >= REWARD_FALL * first - _ROUNDING:
        fast.append(f"reward/mean fell from {first:.3g} to {last:.3g}")
    if kl_nats is not None and kl_nats >= KL_NATS:
        fast.append(f"objective/kl_k3 was {kl_nats:.2g} nats")
    if fast:
        lower = f"lower {run.at('learning_rate')}, for example to a third"
        yield f"the policy changed too fast ({', '.join(fast)}): {lower}"
    if (staleness := stats.mean("staleness/mean")) is not None and staleness >= STALENESS:
        key = run.at("rlax.staleness.max_staleness")
        yield f"samples were stale (staleness/mean {staleness:.1f} versions): lower {key}"
    updates = run.steps * run.section.objective.updates_per_step
    if unchanged and updates < FEW_UPDATES:
        yield f"the run made only {updates} updates: raise {run.at('steps')}"


def _too_little(run: Judged, change: Change) -> Iterator[str]:
    low, high = change.ci95
    if (high - low) / 2 > WIDE:
        yield (
            f"the evaluation of {change.problems} problems cannot tell a change of less than "
            f"{100 * (high - low) / 2:.0f} points: raise {run.at('rlax.evaluation.problems')}"
        )
    rate = run.stats.largest("learning/current_learning_rate")
    if rate is not None and rate < LEAST_RATE:
        figure = f"the largest learning/current_learning_rate was {rate:.2g}"
        yield f"the policy hardly changed ({figure}): raise {run.at('learning_rate')}"


def _lengths(run: Judged) -> Iterator[str]:
    before, after = run.measured("truncated") or (0.0, 0.0)
    if after >= TRUNCATED or after - before >= TRUNCATED_RISE - _ROUNDING:
        yield (
            f"{100 * after:.0f} % of the evaluated samples were cut off (before "
            f"{100 * before:.0f} %): raise {run.at('rlax.rollouts.max_new_tokens')}, or set "
            "rlax.objective.overlong.penalty"
        )
    before, after = run.measured("length_mean") or (0.0, 0.0)
    figures = f"length_mean {before:.4g} to {after:.4g} tokens"
    if 0 < LONGER * before <= after:
        penalty = run.at("rlax.objective.overlong.penalty")
        yield f"completions became longer ({figures}): raise {penalty}"
    elif after <= SHORTER * before and before > 0:
        advice = "read late samples, and check that rlax.rewards does not favour short ones"
        yield f"completions became shorter ({figures}): {advice}"


def sentence_on(run: Judged, change: Change, held_out: str) -> str:
    """Returns the sentence on a run; it names likely causes if the run did not get better.

    Args:
      held_out: name of the evaluation set.
    """
    low, high = (100 * end for end in change.ci95)
    measured = (
        f"pass@1 on {held_out} went from {change.before:.3f} to {change.after:.3f} "
        f"({100 * (change.after - change.before):+.1f} points; 95 % interval of the difference, "
        f"paired by problem: {low:+.1f} to {high:+.1f})"
    )
    if change.outcome == "better":
        return f"The run got better: {measured}."
    begins = "The run ended below its beginning"
    if change.outcome == "unchanged":
        begins = "The evaluation does not show that anything was learned"
    found = causes(run, change)
    if not found:
        why = "no figure explains it: compare early and late samples with rlax report"
        if change.outcome == "worse":
            rate = run.at("learning_rate")
            why += f", and try a tenth of {rate}: one that is too high is a possible cause"
    elif len(found) == 1:
        why = f"a likely cause: {found[0]}"
    else:
        numbered = "; ".join(f"({i}) {cause}" for i, cause in enumerate(found, 1))
        why = f"likely causes: {numbered}"
    return f"{begins}: {measured}; {why}."
