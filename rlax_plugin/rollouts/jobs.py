"""Groups on their way through the engine, each with what has been generated of its samples so far.

A sample is at all times a ``Rollout``: "cancelled" while it is unfinished, with its tokens so far,
perhaps none. New tokens are appended to it, so a sample that was interrupted here and one that
another worker began go on in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlax_plugin.config import Rollouts
from rlax_plugin.rollouts.defects import outside
from rlax_plugin.rollouts.slots import MAX_STOP_IDS, Prefill, SlotOutput
from rlax_plugin.types import FinishReason, GroupRequest, Rollout


@dataclass(eq=False, slots=True)
class Job:
    """A group and its samples.

    Attributes:
      request: what is to be generated.
      deliver: takes the complete rollouts in index order; called on the engine's thread.
      fail: takes what ended the engine before the group was complete.
      abandoned: whether nobody waits for the group any more.
      report: takes the rollouts so far, some of them "cancelled"; called on the engine's thread.
      rollouts: one per sample, in index order.
      waiting: indices of the samples that wait for a slot, in order.
      min_version: the oldest weights to generate with; see ``GroupRequest.needs_version``.
    """

    request: GroupRequest
    deliver: Callable[[list[Rollout]], None]
    fail: Callable[[Exception], None]
    abandoned: Callable[[], bool] = lambda: False
    report: Callable[[list[Rollout]], None] = lambda rollouts: None
    rollouts: list[Rollout] = field(init=False)
    waiting: list[int] = field(init=False)
    min_version: int = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        blank = (_blank(request, index) for index in range(len(request.seeds)))
        self.rollouts = list(request.resume or blank)
        self.waiting = [r.index for r in self.rollouts if r.finish_reason == "cancelled"]
        self.min_version = request.needs_version

    @property
    def complete(self) -> bool:
        return all(r.finish_reason != "cancelled" for r in self.rollouts)

    @property
    def started(self) -> bool:
        """Whether anything has been generated."""
        return any(len(r.tokens) for r in self.rollouts)

    @property
    def trains(self) -> bool:
        """Whether this is a training group; those of evaluation and of other programs are not."""
        return self.request.group_id >= 0

    def admit(self, slots: Sequence[int]) -> tuple[list[int], list[Prefill]]:
        """Takes the first waiting samples off the list, one per slot.

        Returns:
          Their indices, and what fills the slots: samples without tokens share one prefill.
        """
        request, count = self.request, len(slots)
        indices, self.waiting = self.waiting[:count], self.waiting[count:]
        prefills, fresh = [], []
        for slot, index in zip(slots, indices, strict=True):
            seed, tokens = request.seeds[index], self.rollouts[index].tokens
            if len(tokens) == 0:
                fresh.append((slot, seed))
                continue
            behind = np.concatenate([request.prompt_tokens, tokens])
            prefills.append(Prefill(behind, (slot,), (seed,), request.sampling, len(tokens)))
        if fresh:
            taken, seeds = zip(*fresh, strict=True)
            prefills.append(Prefill(request.prompt_tokens, taken, seeds, request.sampling))
        return indices, prefills

    def extended(
        self, index: int, generated: SlotOutput, version: int, finish_reason: FinishReason
    ) -> Rollout:
        """A sample with what a slot has generated of it since it was admitted."""
        before = self.rollouts[index]
        versions = np.full(len(generated.tokens), version, np.int32)
        return dataclasses.replace(
            before,
            tokens=np.concatenate([before.tokens, generated.tokens]),
            logprob_full=np.concatenate([before.logprob_full, generated.logprob_full]),
            logprob_sampled=np.concatenate([before.logprob_sampled, generated.logprob_sampled]),
            versions=np.concatenate([before.versions, versions]),
            finish_reason=finish_reason,
        )

    def interrupt(self, index: int, rollout: Rollout | None) -> None:
        """Makes an admitted sample wait again: behind ``rollout``'s tokens, or at the prompt."""
        self.rollouts[index] = rollout or _blank(self.request, index)
        if rollout is not None and len(rollout.versions):  # the new weights may be older ones
            self.min_version = max(self.min_version, int(rollout.versions[-1]))
        self.waiting = sorted([*self.waiting, index])


def rejection(
    request: GroupRequest, limits: Rollouts, deterministic: bool, vocabulary: int = 0
) -> str | None:
    """Why the slots cannot hold a request, with the config key that limits it; None if they can.

    Args:
      vocabulary: token ids are below it; 0: it is not known yet.
    """
    sampling, length, samples = request.sampling, len(request.prompt_tokens), len(request.seeds)
    resume = request.resume
    problems = {
        f"{length} prompt tokens, rlax.rollouts.max_prompt_tokens is "
        f"{limits.max_prompt_tokens}": not 1 <= length <= limits.max_prompt_tokens,
        f"max_new_tokens {sampling.max_new_tokens}, rlax.rollouts.max_new_tokens is "
        f"{limits.max_new_tokens}": not 1 <= sampling.max_new_tokens <= limits.max_new_tokens,
        f"{len(sampling.stop_ids)} stop ids, at most {MAX_STOP_IDS} are supported": (
            len(sampling.stop_ids) > MAX_STOP_IDS
        ),
        "no seeds": samples == 0,
        f"{samples} samples, rlax.rollouts.slots is {limits.slots}, and rlax.deterministic "
        "generates a group at once": deterministic and samples > limits.slots,
        "resume holds other samples than seeds": bool(resume)
        and [(r.index, r.seed) for r in resume] != list(enumerate(request.seeds)),
        "resume holds a cancelled sample with nothing left to generate": any(
            r.finish_reason == "cancelled" and len(r.tokens) >= sampling.max_new_tokens
            for r in resume
        ),
        "resume holds a sample to be continued, rlax.rollouts.on_new_weights is "
        f"{limits.on_new_weights}": limits.on_new_weights != "continue"
        and any(r.finish_reason == "cancelled" and len(r.tokens) for r in resume),
    }
    if problem := next((problem for problem, found in problems.items() if found), None):
        return problem
    why = outside(request.prompt_tokens, vocabulary)
    return f"the prompt has {why}" if why else None


def _blank(request: GroupRequest, index: int) -> Rollout:
    """A sample that has no tokens yet."""
    none, nats = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return Rollout(
        group_id=request.group_id,
        index=index,
        seed=request.seeds[index],
        tokens=none,
        logprob_full=nats,
        logprob_sampled=nats,
        versions=none,
        finish_reason="cancelled",
    )
