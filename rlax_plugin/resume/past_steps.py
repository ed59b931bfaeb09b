"""The metrics of earlier processes' steps, of which a resume reads those since its snapshot.

It owns the part of a snapshot that has the sums over all steps before the snapshot's, and the end
of ``metrics.jsonl`` at which they were all of it. Where a snapshot lacks this part, or the file is
another one, the whole file is read instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rlax_plugin.metrics.file import MetricsFile
from rlax_plugin.metrics.run_stats import RunStats


class PastSteps(NamedTuple):
    """The steps up to a checkpoint's.

    Attributes:
      stats: sums over them.
      last: metrics of the checkpoint's step.
    """

    stats: RunStats
    last: Mapping[str, float]


def saved(stats: RunStats, file: MetricsFile) -> dict[str, Any]:
    """Returns what ``past_steps`` needs, for a snapshot; the last step's line is in the file."""
    return {"end": file.end, "sums": stats.state()}


def past_steps(
    step: int,
    earlier: Mapping[str, Any],
    file: MetricsFile,
    kept: Mapping[str, int],
    last: Mapping[str, float],
) -> PastSteps:
    """Rewinds a file of metrics to a checkpoint, and returns the steps up to it; blocking.

    Args:
      step: of the checkpoint; 0: there is none.
      earlier: of ``saved``; {}: it was not saved.
      kept: see ``RunStats``.
      last: metrics of ``step``, which count if the file lacks them: the process was killed between
        the checkpoint and the end of its step.

    Raises:
      RlaxError: the file cannot be written.
    """
    stats = RunStats.restored(earlier["sums"], kept) if earlier else None
    found = None if stats is None else file.rewind_to(earlier["end"], step)
    if stats is None or found is None:
        stats, found = RunStats(kept), file.rewind(step)
    if step and step not in {metrics["step"] for metrics in found}:
        file.add(step, last)
        found.append({"step": step, **last})
    of_steps = [{k: v for k, v in metrics.items() if k != "step"} for metrics in found]
    for metrics in of_steps:
        stats.add(metrics)
    return PastSteps(stats, of_steps[-1] if of_steps else {})
