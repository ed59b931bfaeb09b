"""The samples of a request as a worker reports them, each token checked and joined once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from rlax_plugin.fleet.replies import check_continuation, check_reply
from rlax_plugin.rpc.wire import Told, continued
from rlax_plugin.tokens.stopping import Decode
from rlax_plugin.types import Request, Sampled, SideSpec

_MOST_PORTIONS = 64  # of a sample: one token alone takes fifty times its bytes


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
    exactly: int | None,
    vocabulary: int,
    side: Mapping[str, SideSpec],
    decode: Decode | None,
) -> Growing:
    """Returns the samples after a further report or the answer; see ``check_reply``.

    Args:
      known: the samples after the worker's earlier reports; None: this is the first.

    Raises:
      WorkerError: the report is invalid; ``known`` is as it was.
    """
    if known is not None and not request.sampling.stop_strings and known.grows_by(news):
        check_continuation(
            [told.sampled for told in news],
            known.lengths,
            request,
            newest_version,
            worker=worker,
            exactly=exactly,
            vocabulary=vocabulary,
            side=side,
        )
        known.add(news)
        return known
    before = request.resume if known is None else known.samples()
    samples = continued(before, news, request, worker)
    check_reply(
        samples,
        request,
        newest_version,
        worker=worker,
        exactly=exactly,
        vocabulary=vocabulary,
        side=side,
        decode=decode,
    )
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
