"""Replies of workers: each token is checked against the request and joined once.

No part of an invalid reply is used.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.tokens.defects import defect
from rlax_plugin.base.tokens.stopping import Decode
from rlax_plugin.base.types import EMPTY, Request, Sampled, SideSpec
from rlax_plugin.rpc.transport.wire import Told, continued

_MOST_PORTIONS = 64  # of a sample: one token alone takes fifty times its bytes


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
    begun: Sequence[int] = (),
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
      begun: for each sample the number of tokens that were checked before and are not among those
        of ``samples``, see ``Growing.grows_by``; (): ``samples`` are whole.

    Raises:
      WorkerError: names the sample and the rule it violates.
    """
    found = defect(
        samples,
        request.sampling,
        vocabulary,
        context_length=len(request.context),
        side=side,
        decode=decode,
        begun=begun,
    )
    resume = () if begun else request.resume  # what was begun was checked before
    found = found or _version_defect(samples, request, newest_version, exactly, resume)
    for index, (sampled, before) in enumerate(zip(samples, resume, strict=bool(resume))):
        if found is None and not _goes_on(sampled, before):
            found = f"sample {index} does not continue the unfinished sample that it was given"
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


class Growing:
    """Samples in the portions in which they have arrived; joined when they are needed.

    Attributes:
      lengths: tokens of each sample.
    """

    def __init__(self, samples: Sequence[Sampled] = ()):
        self._portions = [[one] for one in samples]
        self.lengths = [len(one.tokens) for one in samples]
        self._newest = [int(one.versions[-1]) if len(one.versions) else 0 for one in samples]

    @property
    def tokens(self) -> int:
        """The number of tokens of all samples."""
        return sum(self.lengths)

    @property
    def unfinished(self) -> bool:
        """True if some sample is not complete."""
        return any(portions[-1].finish is None for portions in self._portions)

    def samples(self) -> tuple[Sampled, ...]:
        """Returns the whole samples."""
        self._portions = [[_joined(portions)] for portions in self._portions]
        return tuple(one for (one,) in self._portions)

    def grows_by(self, news: Sequence[Told]) -> bool:
        """True if a report only adds tokens, so that these may be checked alone."""
        return all(self._follows(index, told) for index, told in enumerate(news))

    def _follows(self, index: int, told: Told) -> bool:
        """True if new tokens follow those of a sample, or it was complete and stays so."""
        begins_at, s = told
        finish = self._portions[index][-1].finish
        if begins_at != self.lengths[index]:
            return False
        if finish is not None or not len(s.tokens):
            return not len(s.tokens) and s.finish == finish
        return len(s.versions) > 0 and int(s.versions[0]) >= self._newest[index]

    def add(self, news: Sequence[Told]) -> None:
        """Takes a report by which the samples grow, and which was checked."""
        for index, (_, s) in enumerate(news):
            if len(s.tokens):
                self._portions[index].append(s)
                if len(self._portions[index]) > _MOST_PORTIONS:
                    self._portions[index] = [_joined(self._portions[index])]
                self.lengths[index] += len(s.tokens)
                self._newest[index] = int(s.versions[-1])
            else:
                last = self._portions[index].pop()
                self._portions[index].append(dataclasses.replace(last, side=s.side))


def take_report(
    known: Growing | None,
    news: Sequence[Told],
    request: Request,
    newest_version: int,
    *,
    worker: str,
    decode: Decode | None,
    **rules: Any,
) -> Growing:
    """Returns the samples after a further report or the answer.

    Args:
      known: the samples after the worker's earlier reports; None: this is the first.
      decode, rules: see ``check_reply``.

    Raises:
      WorkerError: the report is invalid; ``known`` is as it was.
    """
    check = functools.partial(
        check_reply, request=request, newest_version=newest_version, worker=worker, **rules
    )
    if known is not None and not request.sampling.stop_strings and known.grows_by(news):
        check([told.sampled for told in news], begun=known.lengths)
        known.add(news)
        return known
    before = request.resume if known is None else known.samples()
    samples = continued(before, news, request, worker)
    check(samples, decode=decode)
    return Growing(samples)


def _joined(portions: Sequence[Sampled]) -> Sampled:
    if len(portions) == 1:
        return portions[0]
    return dataclasses.replace(
        portions[-1],
        tokens=np.concatenate([one.tokens for one in portions]),
        logprobs=np.concatenate([one.logprobs for one in portions]),
        versions=np.concatenate([one.versions for one in portions]),
    )
