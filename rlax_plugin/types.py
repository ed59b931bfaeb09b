"""The records that travel between stages, one per boundary.

Tokens are int32. ``logprob_full[t]``, ``logprob_sampled[t]`` and ``versions[t]`` belong to
``tokens[t]``, everywhere. Training steps count from 1, weight versions from 0: the update of step
``s`` produces version ``s``, and version 0 is what training started from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question.

    Attributes:
      id: content hash, issued by the prompt source; the same text has the same id in every run. It
        is the prompt's identity: two prompts that differ in anything need two ids.
      tokens: int32 [prompt_length], ready for the model (BOS included where the model wants one).
      text: what the tokens say.
      reference: what the reward compares with; its meaning belongs to the task.
    """

    id: str
    tokens: np.ndarray
    text: str
    reference: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a completion is drawn, per request.

    Attributes:
      temperature: logits are divided by it before everything else; 0 means greedy.
      top_k: keep the k most probable tokens; 0 keeps all.
      top_p: keep the smallest set whose probability is at least this; 1.0 keeps all.
      max_new_tokens: tokens drawn at most, the stop token included.
      stop_ids: drawing one of these ends the sample; the token is kept.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 16
    stop_ids: tuple[int, ...] = ()

    @property
    def truncates(self) -> bool:
        """Whether top-k or top-p cuts the distribution."""
        return self.top_k > 0 or self.top_p < 1.0


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One prompt to be sampled n times by one worker.

    Attributes:
      group_id: issue order, counts from 0, unique in a run; a group issued again keeps it.
      attempt: 1 for the first time the group is issued, then 2, ...
      seeds: one 64-bit seed per sample; with the weights it determines the sample's tokens.
      min_version: the worker must hold at least this weight version before it starts.
      resume: one rollout per seed to go on from, drawn by another worker; "cancelled" ones are
        continued behind their tokens (perhaps none), others are complete. Empty: start afresh.
    """

    group_id: int
    attempt: int
    prompt_tokens: np.ndarray
    seeds: tuple[int, ...]
    sampling: SamplingParams
    min_version: int = 0
    resume: tuple[Rollout, ...] = ()

    @property
    def needs_version(self) -> int:
        """The oldest weights to go on with: ``min_version``, or newer if unfinished samples are.

        The versions of a sample's tokens never go backwards.
        """
        unfinished = (r.versions for r in self.resume if r.finish_reason == "cancelled")
        return max([self.min_version, *(int(v[-1]) for v in unfinished if len(v))])


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion.

    Attributes:
      group_id: the group it belongs to; with ``index`` it is the sample's id.
      index: 0 .. n-1 within the group.
      seed: the 64-bit seed it was drawn with.
      tokens: int32 [length], stop token included.
      logprob_full: float32 [length], temperature applied, nothing truncated. Training uses this.
      logprob_sampled: float32 [length], of the truncated distribution the token was drawn from.
      versions: int32 [length], the weight version that produced each token.
      finish_reason: "stop" (a stop id), "length" (max_new_tokens) or "cancelled": unfinished, with
        the tokens drawn so far, perhaps none. A cancelled rollout never trains.
      worker: name of the worker that drew it; of one that was resumed, all of them: ``a+b``.
      text: the decoded completion without the stop token; "" until the controller decodes it.
      reward: None until scored, and None for good where ``reward_error`` is set.
      reward_parts: what each of ``rlax.rewards`` gave, in their order: they sum up to ``reward``.
        Empty until scored, and where ``reward_error`` is set.
      reward_error: why scoring failed; an errored sample never counts as reward 0.
    """

    group_id: int
    index: int
    seed: int
    tokens: np.ndarray
    logprob_full: np.ndarray
    logprob_sampled: np.ndarray
    versions: np.ndarray
    finish_reason: FinishReason
    worker: str = ""
    text: str = ""
    reward: float | None = None
    reward_parts: tuple[float, ...] = ()
    reward_error: str | None = None

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of all workers that have drawn a part of it, in order."""
        return tuple(self.worker.split("+"))


@dataclass(frozen=True, slots=True)
class Group:
    """All completions of one prompt, the unit of curation and staleness.

    Attributes:
      id: see ``GroupRequest.group_id``.
      attempt: the attempt that succeeded.
      prompt: the question.
      rollouts: n samples in index order.
      advantages: float64 [n], computed over the whole batch the group trains in; None before.
      measured_pass_rate: the prompt's pass rate before this group, None if never seen.
    """

    id: int
    attempt: int
    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    advantages: np.ndarray | None = None
    measured_pass_rate: float | None = None

    @property
    def rewards(self) -> np.ndarray:
        """float64 [n]; NaN where scoring failed."""
        return np.array(
            [np.nan if r.reward is None else r.reward for r in self.rollouts], dtype=np.float64
        )

    @property
    def oldest_version(self) -> int:
        """The oldest weight version among all tokens of the group."""
        return min(int(r.versions.min()) for r in self.rollouts)


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What one RL step trains on.

    Attributes:
      step: the training step it is for, counts from 1; its update produces version ``step``.
      arrays: name -> array [rows, length]; ``objective/batches.py`` lists the names.
      groups: where the rows came from, in row order.
    """

    step: int
    arrays: Mapping[str, np.ndarray]
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Descent:
    """The checkpoint of another run whose weights a run starts from, see ``rlax train --from``.

    Attributes:
      run: the other run's directory, an absolute path or a URL.
      step: RL step of the checkpoint.
      checkpoint: its name below ``checkpoints/``.
    """

    run: str
    step: int
    checkpoint: str

    def __str__(self) -> str:
        return f"{self.run}@{self.step}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One variable of a published version: shape, dtype name, device fingerprint (uint32)."""

    shape: tuple[int, ...]
    dtype: str
    fingerprint: int


@dataclass(frozen=True, slots=True)
class Canary:
    """Log-probs that every worker must reproduce before it draws with a version.

    Attributes:
      tokens: int32 [n + 1], a fixed sequence.
      logprobs: float32 [n], nats at temperature 1; ``logprobs[t]`` belongs to ``tokens[t + 1]``
        given ``tokens[: t + 1]``. The trainer computes them from the published buffers.
      tolerance: largest difference allowed, nats.
    """

    tokens: np.ndarray
    logprobs: Any
    tolerance: float


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """A published set of weights, as the parameter server knows it.

    Attributes:
      version: counts from 0; equals the training step that produced it.
      step: completed training steps.
      path: where the bytes are; every worker can read it.
      tensors: variable name -> spec, for every variable that is neither cache nor RNG state.
      canary: what a worker must reproduce; None where the trainer computes none.
    """

    version: int
    step: int
    path: str
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    canary: Canary | None = None
