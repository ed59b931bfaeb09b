"""The rows of the table of metrics that every evaluation reports."""

from __future__ import annotations

from rlax_plugin.metrics.objective_rows import Row

EVALUATED = "steps in which an evaluation ends"
_SCORED = f"{EVALUATED}, unless every reward failed"

MEASURES: tuple[Row, ...] = (
    (
        "pass_at_<k>",
        "fraction",
        "pass@k: share of problems for which at least one of k samples is right",
    ),
    (
        "majority_at_<k>",
        "fraction",
        "majority@k: share of problems for which the most frequent of k answers is right",
    ),
    ("reward_mean", "reward", "mean over samples whose reward did not fail", _SCORED),
    (
        "reward_errors",
        "fraction",
        "fraction of the samples whose reward raised an error or took too long",
    ),
    ("length_mean", "tokens", "mean length of completions"),
    ("length_p95", "tokens", "95th percentile of the length of completions"),
    ("truncated", "fraction", "fraction of the samples that were cut at `max_new_tokens`"),
)
