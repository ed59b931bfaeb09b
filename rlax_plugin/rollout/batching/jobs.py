"""Requests on their way through the engine, with the samples generated so far.

A sample is always a ``Sampled``: unfinished at first, with its tokens so far, perhaps none. New
tokens are appended to it, so a sample that was interrupted here and one that another worker began
continue in the same way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlax_plugin.base.tokens.defects import outside
from rlax_plugin.base.tokens.stopping import problem_of
from rlax_plugin.base.types import EMPTY, Finish, Request, Sampled, SideSpec
from rlax_plugin.config import INT32_MAX, Rollouts
from rlax_plugin.rollout.batching.decode_engine import MAX_STOP_IDS, Prefill, SlotOutput

TRUNCATED_LOGPROBS = "truncated_logprobs"
"""Side channel: log-probs [length] of the renormalised distribution after top-k and top-p.

Present where a request truncates the distribution."""

SIDE_CHANNELS = {TRUNCATED_LOGPROBS: SideSpec("float32")}
"""The side channels of every engine that generates with jobs."""

_COLDEST = 0.999e-3  # the least that a config may have is 0.001, and floats are rounded


@dataclass(eq=False, slots=True)
class Job:
    """A request and its samples.

    Attributes:
      request: the request to generate.
      deliver: takes the complete samples in order; called on the engine's thread.
      fail: takes the error that ended the engine before the request was complete.
      abandoned: returns True once its call has ended, so its result is not used.
      report: takes the samples so far, some unfinished; called on the engine's thread.
      stream: takes the same more often, for a client that sees tokens as they come; or None.
      samples: one per seed, in order.
      waiting: indices of the samples that wait for a slot, in order.
      min_version: the oldest weights to generate with; see ``Request.needs_version``.
      given_up: True once this request was cancelled, even if others of its call continue.
    """

    request: Request
    deliver: Callable[[list[Sampled]], None]
    fail: Callable[[Exception], None]
    abandoned: Callable[[], bool] = lambda: False
    report: Callable[[list[Sampled]], None] = lambda samples: None
    stream: Callable[[list[Sampled]], None] | None = None
    samples: list[Sampled] = field(init=False)
    waiting: list[int] = field(init=False)
    min_version: int = field(init=False)
    given_up: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.samples = list(request.resume or map(blank, request.seeds))
        self.waiting = [i for i, s in enumerate(self.samples) if s.finish is None]
        self.min_version = request.needs_version

    @property
    def complete(self) -> bool:
        return all(s.finish is not None for s in self.samples)

    @property
    def unwanted(self) -> bool:
        """True if its result is not used any more."""
        return self.given_up or self.abandoned()

    @property
    def started(self) -> bool:
        """True if any token has been generated."""
        return any(len(s.tokens) for s in self.samples)

    @property
    def trains(self) -> bool:
        """True if its samples train; those of evaluation and of other programs do not."""
        return self.request.key.purpose == "train"

    def admit(self, slots: Sequence[int]) -> tuple[list[int], list[Prefill]]:
        """Takes the first waiting samples off the list, one per slot.

        Returns:
          Their indices, and the prefills for the slots: samples without tokens share one.
        """
        request, count = self.request, len(slots)
        indices, self.waiting = self.waiting[:count], self.waiting[count:]
        prefills, fresh = [], []
        for slot, index in zip(slots, indices, strict=True):
            seed, tokens = request.seeds[index], self.samples[index].tokens
            if len(tokens) == 0:
                fresh.append((slot, seed))
                continue
            behind = np.concatenate([request.context, tokens])
            prefills.append(Prefill(behind, (slot,), (seed,), request.sampling, len(tokens)))
        if fresh:
            taken, seeds = zip(*fresh, strict=True)
            prefills.append(Prefill(request.context, taken, seeds, request.sampling))
        return indices, prefills

    def extended(
        self, index: int, generated: SlotOutput, version: int, finish: Finish | None
    ) -> Sampled:
        """Returns a sample with the tokens that its slot has generated since it was admitted."""
        before = self.samples[index]
        versions = np.full(len(generated.tokens), version, np.int32)
        side = EMPTY
        if self.request.sampling.truncates:
            earlier = before.side.get(TRUNCATED_LOGPROBS, np.zeros(0, np.float32))
            joined = np.concatenate([earlier, generated.truncated_logprobs])
            side = {TRUNCATED_LOGPROBS: joined}
        return dataclasses.replace(
            before,
            tokens=np.concatenate([before.tokens, generated.tokens]),
            logprobs=np.concatenate([before.logprobs, generated.logprobs]),
            versions=np.concatenate([before.versions, versions]),
            finish=finish,
            side=side,
        )

    def interrupt(self, index: int, sampled: Sampled | None) -> None:
        """Makes an admitted sample wait again, with ``sampled`` kept; None: without tokens."""
        self.samples[index] = sampled or blank(self.request.seeds[index])
        if sampled is not None and len(sampled.versions):  # the new weights may be older ones
            self.min_version = max(self.min_version, int(sampled.versions[-1]))
        self.waiting = sorted([*self.waiting, index])


def rejection(
    request: Request,
    limits: Rollouts,
    *,
    vocabulary: int = 0,
    max_context: int = 0,
    most_samples: int = INT32_MAX,
) -> str | None:
    """Returns the reason a request must not reach an engine, with its config key; None if it may.

    Called where a request enters a worker: engines trust what they are given. Stop ids may be
    beyond the vocabulary: then no sample ends with them.

    Args:
      vocabulary: token ids are below it; 0: unknown.
      max_context: the most tokens before those that are sampled in a turn after the first one
        (``RlaxSection.max_context_tokens``); 0: episodes have one turn.
      most_samples: maximum number of samples of one request.
    """
    key, sampling, resume = request.key, request.sampling, request.resume
    length, most, samples = len(request.context), limits.max_prompt_tokens, len(request.seeds)
    fits = f"{length} prompt tokens, rlax.rollouts.max_prompt_tokens is {most}"
    if key.trajectory or key.turn:  # an environment may add to a further trajectory's context
        most = max_context
        fits = (
            f"{length} tokens before turn {key.turn}, at most {most} fit with "
            "rlax.rollouts.max_prompt_tokens and rlax.episodes.max_tokens"
        )
    temperature, stop_ids = sampling.temperature, sampling.stop_ids
    problems = {
        fits: not 1 <= length <= most,
        f"max_new_tokens {sampling.max_new_tokens}, rlax.rollouts.max_new_tokens is "
        f"{limits.max_new_tokens}": not 1 <= sampling.max_new_tokens <= limits.max_new_tokens,
        # Logits divided by a temperature that is smaller would not be finite.
        f"temperature {temperature}, must be 0 or from 0.001 on, and finite": temperature != 0
        and not _COLDEST <= temperature < math.inf,
        f"top_k {sampling.top_k}, must be from 0 to {INT32_MAX}": sampling.top_k < 0,
        f"top_p {sampling.top_p}, must be above 0 and at most 1": not 0 < sampling.top_p <= 1,
        f"{len(stop_ids)} stop ids, at most {MAX_STOP_IDS} are supported": (
            len(stop_ids) > MAX_STOP_IDS
        ),
        f"stop ids {list(stop_ids[:MAX_STOP_IDS])}, must be from 0 to {INT32_MAX}": (
            min(stop_ids, default=0) < 0
        ),
        f"{samples} samples, must be 1 to {most_samples}": not 1 <= samples <= most_samples,
        f"min_version {request.min_version}": not -1 <= request.min_version <= INT32_MAX,
        "resume has samples other than those requested": bool(resume)
        and tuple(s.seed for s in resume) != request.seeds,
    }
    if problem := next((problem for problem, is_so in problems.items() if is_so), None):
        return problem
    if sampling.stop_strings and (problem := problem_of(sampling.stop_strings)):
        return problem
    why = outside(request.context, vocabulary)
    return f"the prompt has {why}" if why else None


def blank(seed: int) -> Sampled:
    """Returns a sample without tokens."""
    none = np.zeros(0, np.int32)
    return Sampled(seed, none, np.zeros(0, np.float32), none, None)
