"""The measures of an evaluation on a set of problems: names, values, and intervals."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from rlax_plugin.run.evaluation.statistics import (
    Estimate,
    bootstrap,
    bootstrap_interval,
    majority_at_k,
    pass_at_k,
)


def _mean_of(values_b: np.ndarray, n: int, resamples: int, seed: int) -> Estimate:
    interval = bootstrap_interval(values_b, resamples=resamples, seed=seed)
    return Estimate(float(values_b.mean()), n, int(values_b.size), interval)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The results of generating n samples for each problem.

    Attributes:
      rewards_bn: float64 [problems, samples]; NaN where scoring failed.
      lengths_bn: integers, completion tokens, stop included.
      truncated_bn: bool, True if a completion was cut at the maximum number of tokens.
      answers_bn: the answer of each completion, or any value that is equal for two samples of a
        problem with the same answer; None if it gives no answer. Used for majority@k only.
    """

    rewards_bn: np.ndarray
    lengths_bn: np.ndarray
    truncated_bn: np.ndarray
    answers_bn: Sequence[Sequence[Hashable | None]]


def measures(
    outcomes: Outcomes,
    *,
    pass_threshold: float,
    k: Sequence[int],
    majority_k: Sequence[int],
    resamples: int,
    seed: int,
) -> dict[str, Estimate]:
    """Returns the measures of a set of problems with 95 % bootstrap intervals over problems.

    ``pass_at_<k>`` and ``majority_at_<k>`` for each k; ``reward_mean`` over the samples whose
    scoring did not fail, left out if all failed; ``length_mean`` and ``length_p95``, tokens;
    ``truncated`` and ``reward_errors``, shares of the samples. A sample whose scoring
    failed has not passed.

    Args:
      pass_threshold: a reward at or above it is a pass.
      resamples, seed: see `bootstrap`.

    Raises:
      ValueError: a k is out of range, or there are no problems.
    """
    scored_bn = np.isfinite(outcomes.rewards_bn)
    rewards_bn = np.where(scored_bn, outcomes.rewards_bn, 0.0)
    passed_bn = scored_bn & (rewards_bn >= pass_threshold)
    problems, n = passed_bn.shape

    def mean(values_b: np.ndarray) -> Estimate:
        return _mean_of(values_b, n, resamples, seed)

    found = {f"pass_at_{size}": mean(pass_at_k(n, passed_bn.sum(axis=1), size)) for size in k}
    for size in majority_k:
        per_problem = [
            majority_at_k(answers, passed.tolist(), size)
            for answers, passed in zip(outcomes.answers_bn, passed_bn, strict=True)
        ]
        found[f"majority_at_{size}"] = mean(np.array(per_problem))
    if scored_bn.any():
        sums_b, counts_b = rewards_bn.sum(axis=1), scored_bn.sum(axis=1)

        def mean_reward(drawn: np.ndarray) -> np.ndarray:
            counts = counts_b[drawn].sum(axis=1)
            return np.where(counts > 0, sums_b[drawn].sum(axis=1) / np.maximum(counts, 1), np.nan)

        interval = bootstrap(mean_reward, problems, resamples=resamples, seed=seed)
        value = float(sums_b.sum() / counts_b.sum())
        found["reward_mean"] = Estimate(value, n, problems, interval)

    def p95(drawn: np.ndarray) -> np.ndarray:
        lengths = outcomes.lengths_bn[drawn].reshape(len(drawn), -1)
        return np.quantile(lengths, 0.95, axis=1)

    found["length_mean"] = mean(outcomes.lengths_bn.mean(axis=1))
    interval = bootstrap(p95, problems, resamples=resamples, seed=seed, samples=n)
    value = float(np.quantile(outcomes.lengths_bn, 0.95))
    found["length_p95"] = Estimate(value, n, problems, interval)
    found["truncated"] = mean(outcomes.truncated_bn.mean(axis=1))
    found["reward_errors"] = mean(1.0 - scored_bn.mean(axis=1))
    return found


def passed_counts(rewards_bn: np.ndarray, pass_threshold: float) -> tuple[int, ...]:
    """Returns the number of samples of each problem that passed; see ``Outcomes``."""
    passed_bn = np.nan_to_num(rewards_bn, nan=-np.inf) >= pass_threshold
    return tuple(passed_bn.sum(axis=1).tolist())


def is_score(measure: str) -> bool:
    """True if a measure is a share of solved problems."""
    return measure.startswith(("pass_at_", "majority_at_"))


def label(measure: str) -> str:
    """Returns a measure's name for display, such as ``pass@8``."""
    return measure.replace("_at_", "@").replace("_", " ")
