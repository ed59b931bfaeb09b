"""The figures of a run: the cards of its report."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlax_plugin.tools.commands.report.run import RunData


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its name, as they are shown."""

    name: str
    value: str
    remark: str = ""


def state(run: RunData) -> str:
    """Describes the state of a run in a word or two."""
    if run.training:
        return "training"
    if not run.summary:
        return "not ended"
    return "complete" if run.summary.get("complete") else "stopped early"


def verdict(run: RunData) -> str:
    """Returns the sentence with the verdict on a run; empty if it has none."""
    found = run.summary.get("verdict")
    sentence = found.get("sentence") if isinstance(found, dict) else None
    return sentence if isinstance(sentence, str) else ""


def figures(run: RunData) -> list[Figure]:
    """Returns the figures of a run; those of missing records are left out."""
    return [found for found in (make(run) for make in _FIGURES) if found is not None]


def _from_summary(
    name: str, key: str, form: Callable[[Any], str], remark: str = ""
) -> Callable[[RunData], Figure | None]:
    def make(run: RunData) -> Figure | None:
        value = run.summary.get(key)
        return None if value is None else Figure(name, form(value), remark)

    return make


def _steps(run: RunData) -> Figure:
    updates = run.config.get("steps")
    per_step = run.setting("objective", "epochs", 1) * run.setting("objective", "mini_batches", 1)
    steps = int(max(run.steps, default=0))
    return Figure("steps", f"{steps:,}", f"of {updates // per_step:,}" if updates else "")


def _reward(run: RunData) -> Figure | None:
    rewards = [r for r in run.metrics.get("reward/mean", []) if not math.isnan(r)]
    if not rewards:
        return None
    first, last = (sum(part) / len(part) for part in (rewards[:10], rewards[-10:]))
    return Figure("reward", f"{first:.3f} → {last:.3f}", "mean of the first and last 10 steps")


def _groups(run: RunData) -> Figure | None:
    issued = run.summary.get("groups_issued")
    if issued is None:
        return None
    why = run.summary.get("groups_rejected_why") or {}
    told = ", ".join(f"{name}: {count:,}" for name, count in why.items())
    accepted = f"{run.summary.get('groups_accepted', 0):,} accepted"
    return Figure("groups issued", f"{issued:,}", f"{accepted}; {told}" if told else accepted)


def _wall_time(run: RunData) -> Figure | None:
    wall_s = run.summary.get("wall_s")
    if wall_s is None:
        return None
    if not run.summary.get("trainer_restarts"):
        return Figure("wall time", duration(wall_s), "start-up included")
    # What earlier processes took outside of their steps is not recorded.
    return Figure("wall time", time_of_steps(run), "of all steps, without starts of the trainer")


def time_of_steps(run: RunData) -> str:
    """Returns the time of all steps, which a restart does not change."""
    return duration(math.fsum(s for s in run.metrics.get("time/step_s", []) if not math.isnan(s)))


def _workers(run: RunData) -> Figure | None:
    seen = run.summary.get("workers_seen")
    if seen is None:
        return None
    workers, trainer = (run.summary.get(f"{who}_restarts", 0) for who in ("worker", "trainer"))
    return Figure(
        "workers seen", f"{seen:,}", f"restarts: {workers:,}; of the trainer: {trainer:,}"
    )


def duration(seconds: float) -> str:
    """Formats a duration, such as "42.0 s", "10 min 6 s" or "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


_FIGURES: tuple[Callable[[RunData], Figure | None], ...] = (
    _steps,
    _reward,
    _wall_time,
    _from_summary("generated", "generated_tokens_per_s", lambda v: f"{v:,.0f} tokens/s"),
    _from_summary("trained", "train_tokens_per_s", lambda v: f"{v:,.0f} tokens/s"),
    _from_summary("tokens generated", "tokens_generated", _whole),
    _groups,
    _from_summary("largest staleness", "max_staleness_seen", _whole, "versions; on-policy is 1"),
    _from_summary(
        "log-prob gap", "logprob_gap_p95", lambda v: f"{v:.2g}", "nats, largest p95 of any step"
    ),
    _from_summary("weight versions", "weight_versions", _whole),
    _workers,
    _from_summary("failed rewards", "reward_errors", _whole, "samples"),
)
