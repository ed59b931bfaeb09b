"""Checks replies of workers against the request: no part of an invalid reply is used."""

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
      newest_version: the newest version that a worker may use.
      exactly: the only version allowed; None: any from the request's minimum to the newest.
      worker: its name, for messages.
      vocabulary: of the worker's model; 0: unknown.
      side: the side channels that the worker has declared.
      decode: tokens to text; needed to check stop strings.

    Raises:
      WorkerError: names the sample and the rule it violates.
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
    found = found or _version_defect(samples, request, newest_version, exactly, request.resume)
    pairs = zip(samples, request.resume, strict=bool(request.resume))
    for index, (sampled, before) in enumerate(pairs):
        if found is None and not _goes_on(sampled, before):
            found = f"sample {index} does not continue the unfinished sample that it was given"
    if found is not None:
        raise WorkerError(f"{worker}: {request.key} {found}")


def check_continuation(
    news: Sequence[Sampled],
    begun: Sequence[int],
    request: Request,
    newest_version: int,
    *,
    worker: str,
    exactly: int | None = None,
    vocabulary: int = 0,
    side: Mapping[str, SideSpec] = EMPTY,
) -> None:
    """Checks tokens that follow those of a report that was checked, see ``Growing.grows_by``.

    Args:
      news: for each sample the new tokens.
      begun: for each sample the number of tokens before them.

    Raises:
      WorkerError: ``check_reply`` would reject the whole samples.
    """
    found = defect(
        news,
        request.sampling,
        vocabulary,
        context_length=len(request.context),
        side=side,
        begun=begun,
    )
    found = found or _version_defect(news, request, newest_version, exactly, ())
    if found is not None:
        raise WorkerError(f"{worker}: {request.key} {found}")


def _version_defect(
    samples: Sequence[Sampled],
    request: Request,
    newest: int,
    exactly: int | None,
    resume: Sequence[Sampled],
) -> str | None:
    """Returns the version rule that samples violate; None if they violate none.

    A sample's versions never decrease, so its first and last are the smallest and largest.

    Args:
      resume: the samples that these continue, and include.
    """
    for index, (s, before) in enumerate(itertools.zip_longest(samples, resume)):
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
    """True if a sample begins with the resumed one, and equals it if that was complete."""
    begun = len(before.tokens)
    complete = before.finish is not None
    if complete and (len(sampled.tokens) != begun or sampled.finish != before.finish):
        return False
    return all(
        np.array_equal(getattr(sampled, name)[:begun], getattr(before, name))
        for name in ("tokens", "logprobs", "versions")
    )


def contributors(before: Sampled | None, worker: str) -> tuple[str, ...]:
    """Returns the names of the workers that have generated a sample, in order."""
    if before is None or not len(before.tokens):
        return (worker,)
    if before.finish is not None or worker in before.workers:
        return before.workers
    return (*before.workers, worker)


def all_contributors(request: Request, worker: str) -> list[tuple[str, ...]]:
    """Returns ``contributors`` for each sample of a request that a worker answers."""
    before = request.resume or [None] * len(request.seeds)
    return [contributors(one, worker) for one in before]
