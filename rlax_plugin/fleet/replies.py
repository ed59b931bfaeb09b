"""Replies of workers, checked against the request: no part of an invalid reply is used."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from rlax_plugin.errors import WorkerError
from rlax_plugin.tokens.defects import defect
from rlax_plugin.tokens.stopping import Decode
from rlax_plugin.types import EMPTY, Request, Sampled, SideSpec


def check_reply(
    samples: Sequence[Sampled],
    request: Request,
    newest_version: int,
    *,
    worker: str,
    exactly: int | None = None,
    vocabulary: int = 0,
    side: Mapping[str, SideSpec] = EMPTY,
    decode: Decode | None = None,
) -> None:
    """Checks an answer, or a report of unfinished samples, against the request.

    Args:
      samples: one per seed, in order.
      newest_version: that a worker may use.
      exactly: the only version that it may be generated with; None: any between those two.
      worker: its name, for messages.
      vocabulary: of the worker's model; 0: it has not said.
      side: the side channels that it has declared.
      decode: tokens to text, where there may be stop strings.

    Raises:
      WorkerError: names the sample and what it contradicts.
    """
    length = len(request.context)
    found = defect(
        samples,
        request.sampling,
        vocabulary,
        context_length=length,
        side=side,
        decode=decode,
    )
    found = found or _version_defect(samples, request, newest_version, exactly)
    pairs = zip(samples, request.resume, strict=bool(request.resume))
    for index, (sampled, before) in enumerate(pairs):
        if found is None and not _goes_on(sampled, before):
            found = f"sample {index} does not continue the unfinished sample that it was given"
    if found is not None:
        raise WorkerError(f"{worker}: {request.key} {found}")


def _version_defect(
    samples: Sequence[Sampled], request: Request, newest: int, exactly: int | None
) -> str | None:
    """A sample's versions never go backwards: its first and last ones are the extreme ones."""
    for index, (s, before) in enumerate(itertools.zip_longest(samples, request.resume)):
        begun = 0 if before is None else len(before.tokens)
        count = len(s.versions)
        if not count:
            continue
        oldest, last = s.versions[0], s.versions[-1]
        if last > newest:
            return f"sample {index} was generated with a weight version above {newest}, the newest"
        if count > begun and s.versions[begun] < request.min_version:
            return (
                f"sample {index} was generated with a weight version below "
                f"{request.min_version}, the oldest version allowed"
            )
        if exactly is not None and not oldest == last == exactly:
            return f"sample {index} was not generated with weight version {exactly}, as requested"
    return None


def _goes_on(sampled: Sampled, before: Sampled) -> bool:
    """Whether a sample is what was resumed, continued unless that was complete."""
    begun = len(before.tokens)
    complete = before.finish is not None
    if complete and (len(sampled.tokens) != begun or sampled.finish != before.finish):
        return False
    return all(
        np.array_equal(getattr(sampled, name)[:begun], getattr(before, name))
        for name in ("tokens", "logprobs", "versions")
    )


def contributors(before: Sampled | None, worker: str) -> tuple[str, ...]:
    """Names of the workers that have generated a sample, in order."""
    if before is None or not len(before.tokens):
        return (worker,)
    if before.finish is not None or worker in before.workers:
        return before.workers
    return (*before.workers, worker)


def all_contributors(request: Request, worker: str) -> list[tuple[str, ...]]:
    """``contributors`` of each sample of a request that a worker answers."""
    before = request.resume or [None] * len(request.seeds)
    return [contributors(one, worker) for one in before]
