"""The end of a run whose trainer and sampler disagree: ``rlax.objective.max_gap``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from rlax_plugin.config import Objective
from rlax_plugin.errors import TrainingError

_P95 = "logprob_gap/p95"


def gap_error(history: Sequence[Mapping[str, float]], objective: Objective) -> TrainingError | None:
    """Why the newest step is the last; None: training goes on.

    Steps that measure no gap neither count nor interrupt the row. The history of a run that was
    resumed begins with the steps of earlier processes, so that these count too.

    Args:
      history: the metrics of all steps so far.
    """
    limit, count = objective.max_gap, objective.max_gap_steps
    if limit is None or not history or _P95 not in history[-1]:
        return None
    newest = itertools.islice((m[_P95] for m in reversed(history) if _P95 in m), count)
    row = list(itertools.takewhile(lambda p95: not p95 <= limit, newest))  # NaN is no agreement
    if len(row) < count:
        return None
    values = ", ".join(f"{p95:.3g}" for p95 in reversed(row))
    return TrainingError(
        f"the trainer and the rollout engine do not agree on log-probs: {_P95} was {values} nats "
        f"in the last {count} steps that measured it, above rlax.objective.max_gap = {limit:g} "
        f"(rlax.objective.max_gap_steps = {count}); raise or unset the limit to resume the run"
    )
