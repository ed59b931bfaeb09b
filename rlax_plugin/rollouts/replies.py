"""Replies of workers, checked against the request: no part of an invalid reply is used."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rlax_plugin.errors import WorkerError
from rlax_plugin.rollouts.defects import defect
from rlax_plugin.types import GroupRequest, Rollout


def check_reply(
    rollouts: Sequence[Rollout],
    request: GroupRequest,
    newest_version: int,
    *,
    exactly: int | None = None,
    vocabulary: int = 0,
) -> None:
    """Checks an answer, or a report of unfinished samples, against the request.

    Args:
      rollouts: one per seed, in order.
      newest_version: that the trainer has published.
      exactly: the only version that it may be generated with; None: any between those two.
      vocabulary: of the worker's model; 0: it has not said.

    Raises:
      WorkerError: names the sample and what it contradicts.
    """
    found = defect(rollouts, request.sampling, vocabulary)
    found = found or _version_defect(rollouts, request, newest_version, exactly)
    for r, before in zip(rollouts, request.resume, strict=bool(request.resume)):
        if found is None and not _goes_on(r, before):
            found = f"sample {r.index} does not continue the unfinished sample that it was given"
    if found is not None:
        raise WorkerError(f"{rollouts[0].worker}: group {request.group_id} {found}")


def _version_defect(
    rollouts: Sequence[Rollout], request: GroupRequest, newest: int, exactly: int | None
) -> str | None:
    """A sample's versions never go backwards: its first and last ones are the extreme ones."""
    for r, before in itertools.zip_longest(rollouts, request.resume):
        begun = 0 if before is None else len(before.tokens)
        count = len(r.versions)
        if not count:
            continue
        oldest, last = r.versions[0], r.versions[-1]
        if last > newest:
            return (
                f"sample {r.index} was generated with a weight version above {newest}, the newest"
            )
        if count > begun and r.versions[begun] < request.min_version:
            return (
                f"sample {r.index} was generated with a weight version below "
                f"{request.min_version}, the oldest version allowed"
            )
        if exactly is not None and not oldest == last == exactly:
            return f"sample {r.index} was not generated with weight version {exactly}, as requested"
    return None


def _goes_on(rollout: Rollout, before: Rollout) -> bool:
    """Whether a sample is what was resumed, continued unless that was complete."""
    begun = len(before.tokens)
    if before.finish_reason != "cancelled" and (
        len(rollout.tokens) != begun or rollout.finish_reason != before.finish_reason
    ):
        return False
    return all(
        np.array_equal(getattr(rollout, name)[:begun], getattr(before, name))
        for name in ("tokens", "logprob_full", "logprob_sampled", "versions")
    )


def contributors(before: Rollout | None, worker: str) -> str:
    """Names of the workers that have generated a sample, in order."""
    if before is None or not len(before.tokens):
        return worker
    if before.finish_reason != "cancelled" or worker in before.workers:
        return before.worker
    return f"{before.worker}+{worker}"
