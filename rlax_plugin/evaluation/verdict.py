"""The verdict on a run: its held-out evaluation before and after, and likely causes of no gain.

It is pure: numbers in, sentences out. docs/evaluation.md has the same thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlax_plugin.evaluation.statistics import bootstrap_interval

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


@dataclass(frozen=True, slots=True)
class Change:
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


def paired_change(
    before_b: Sequence[int], after_b: Sequence[int], samples: int, *, resamples: int, seed: int
) -> Change | None:
    """Returns the change of pass@1, paired by problem; None if the problems are not the same.

    Args:
      before_b, after_b: number of samples of each problem that passed, in the same order.
      samples: samples per problem.
      resamples, seed: see ``statistics.bootstrap``.
    """
    if not before_b or len(before_b) != len(after_b) or samples < 1:
        return None
    before, after = (np.asarray(one, np.float64) / samples for one in (before_b, after_b))
    interval = bootstrap_interval(after - before, resamples=resamples, seed=seed)
    return Change(float(before.mean()), float(after.mean()), interval, len(before_b))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a run from which causes are named; None: not measured.

    Attributes:
      updates: number of updates.
      learning_rate: the largest one that the trainer reported.
      entropy, reward: mean over the first and over the last ten steps; nats, and reward.
      length, truncated, reward_errors: evaluation before and after training.
      equal_groups: mean share of a batch's groups whose samples have equal rewards.
      staleness, gap_nats, kl_nats: means of staleness/mean, logprob_gap/mean, objective/kl_k3.
      settings: dotted key -> value in the config, for the keys that a cause names.
    """

    updates: int
    learning_rate: float | None = None
    entropy: Pair | None = None
    reward: Pair | None = None
    length: Pair | None = None
    truncated: Pair | None = None
    reward_errors: Pair | None = None
    equal_groups: float | None = None
    staleness: float | None = None
    gap_nats: float | None = None
    kl_nats: float | None = None
    settings: Mapping[str, Any]


def _at(figures: Figures, key: str) -> str:
    """Returns ``key = value`` of the config, or the key alone."""
    return f"{key} = {figures.settings[key]}" if key in figures.settings else key


def _reward_errors(f: Figures) -> str | None:
    if (
        f.reward_errors is None
        or f.reward_errors[1] - f.reward_errors[0] < REWARD_ERRORS - _ROUNDING
    ):
        return None
    return (
        f"rewards failed for {100 * f.reward_errors[1]:.1f} % of the evaluated samples "
        f"(before {100 * f.reward_errors[0]:.1f} %), and these count as not passed: see "
        "logs/rewards.log and rlax.rewards"
    )


def _gap(f: Figures) -> str | None:
    if f.gap_nats is None or f.gap_nats < GAP_NATS:
        return None
    return (
        f"trainer and rollout engine disagree on log-probs (logprob_gap/mean {f.gap_nats:.2g} "
        f"nats): use {_at(f, 'dtype')} for both, or add truncated_importance_sampling to "
        "rlax.objective.corrections"
    )


def _entropy(f: Figures) -> str | None:
    if f.entropy is None or f.entropy[0] <= 0:
        return None
    first, last = f.entropy
    figures = f"objective/entropy {first:.2g} to {last:.2g} nats"
    if last <= COLLAPSED * first:
        return (
            f"the entropy collapsed ({figures}): raise "
            f"{_at(f, 'rlax.objective.entropy_coefficient')} or lower {_at(f, 'learning_rate')}"
        )
    if last >= GROWN * first:
        return (
            f"the entropy grew ({figures}): lower {_at(f, 'learning_rate')} or raise "
            f"{_at(f, 'rlax.objective.kl.coefficient')}"
        )
    return None


def _length(f: Figures) -> str | None:
    if f.truncated is not None:
        before, after = f.truncated
        if after >= TRUNCATED or after - before >= TRUNCATED_RISE - _ROUNDING:
            return (
                f"{100 * after:.0f} % of the evaluated samples were cut off (before "
                f"{100 * before:.0f} %): raise {_at(f, 'rlax.rollouts.max_new_tokens')}, or set "
                "rlax.objective.overlong.penalty"
            )
    if f.length is None or f.length[0] <= 0:
        return None
    before, after = f.length
    figures = f"length_mean {before:.4g} to {after:.4g} tokens"
    if after >= LONGER * before:
        penalty = _at(f, "rlax.objective.overlong.penalty")
        return f"completions became longer ({figures}): raise {penalty}"
    if after <= SHORTER * before:
        return (
            f"completions became shorter ({figures}): read late samples, and check that "
            "rlax.rewards does not favour short ones"
        )
    return None


def _equal_groups(f: Figures) -> str | None:
    if f.equal_groups is None or f.equal_groups < EQUAL_GROUPS:
        return None
    return (
        f"{100 * f.equal_groups:.0f} % of the trained groups had equal rewards "
        "(batch/groups_equal), which teach nothing: add mixed_outcome to rlax.curation.filters, "
        f"raise {_at(f, 'rlax.rollouts.group_size')}, or choose prompts with rlax curate"
    )


def _too_fast(f: Figures) -> str | None:
    found = []
    if f.reward is not None and f.reward[0] > 0:
        first, last = f.reward
        if first - last >= REWARD_FALL * first - _ROUNDING:
            found.append(f"reward/mean fell from {first:.3g} to {last:.3g}")
    if f.kl_nats is not None and f.kl_nats >= KL_NATS:
        found.append(f"objective/kl_k3 was {f.kl_nats:.2g} nats")
    if not found:
        return None
    key = _at(f, "learning_rate")
    return f"the policy changed too fast ({', '.join(found)}): lower {key}, for example to a third"


def _too_slow(f: Figures) -> str | None:
    if f.learning_rate is None or f.learning_rate >= LEAST_RATE:
        return None
    figure = f"the largest learning/current_learning_rate was {f.learning_rate:.2g}"
    return f"the policy hardly changed ({figure}): raise {_at(f, 'learning_rate')}"


def _staleness(f: Figures) -> str | None:
    if f.staleness is None or f.staleness < STALENESS:
        return None
    return (
        f"samples were stale (staleness/mean {f.staleness:.1f} versions): lower "
        f"{_at(f, 'rlax.staleness.max_staleness')}"
    )


def _updates(f: Figures) -> str | None:
    if f.updates >= FEW_UPDATES:
        return None
    return f"the run made only {f.updates} updates: raise {_at(f, 'steps')}"


def _wide(f: Figures, change: Change) -> str | None:
    low, high = change.ci95
    if (high - low) / 2 <= WIDE:
        return None
    return (
        f"the evaluation of {change.problems} problems cannot tell a change of less than "
        f"{100 * (high - low) / 2:.0f} points: raise {_at(f, 'rlax.evaluation.problems')}"
    )


# In this order: failures that make all other figures doubtful come first.
_CAUSES = (_reward_errors, _gap, _entropy, _length, _equal_groups, _too_fast, _staleness, _updates)
_CAUSES_OF_NOTHING = (_too_slow, *_CAUSES)


def causes(figures: Figures, change: Change) -> tuple[str, ...]:
    """Returns the causes that the figures support, the most likely first, at most three."""
    if change.outcome == "better":
        return ()
    unchanged = change.outcome == "unchanged"
    found = [_wide(figures, change)] if unchanged else []
    found += [cause(figures) for cause in (_CAUSES_OF_NOTHING if unchanged else _CAUSES)]
    return tuple(one for one in found if one is not None)[:MOST_CAUSES]


def verdict(figures: Figures, change: Change, held_out: str) -> str:
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
    found = causes(figures, change)
    if not found:
        why = "no figure explains it: compare early and late samples with rlax report"
    elif len(found) == 1:
        why = f"a likely cause: {found[0]}"
    else:
        numbered = "; ".join(f"({i}) {cause}" for i, cause in enumerate(found, 1))
        why = f"likely causes: {numbered}"
    return f"{begins}: {measured}; {why}."
