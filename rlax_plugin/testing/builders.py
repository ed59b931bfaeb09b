"""Records with sensible contents: what a test does not care about, it need not write.

A keyword sets a field of the record; all others have defaults that fit each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlax_plugin.objective.batches import build_batch
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.types import (
    Canary,
    Group,
    GroupRequest,
    Prompt,
    Rollout,
    SamplingParams,
    TensorSpec,
    TrainBatch,
    WeightVersion,
)
from rlax_plugin.weights.host_fingerprint import fingerprint_numpy


def make_prompt(text: str = "7", reference: str = "7", **changes: Any) -> Prompt:
    """A prompt of one token per character; its id is the text's hash."""
    made = Prompt(
        id=hashlib.sha256(text.encode()).hexdigest()[:16],
        tokens=np.array([2 + ord(c) % 60 for c in text], np.int32),
        text=text,
        reference=reference,
    )
    return replace(made, **changes)


def make_rollout(length: int = 3, *, version: int = 0, **changes: Any) -> Rollout:
    """A sample of ``length`` tokens, all of one version, scored with 1.0.

    Args:
      changes: fields; with ``tokens`` given, the other arrays get their length from it.
    """
    tokens = np.asarray(changes.pop("tokens", np.arange(4, 4 + length)), np.int32)
    logprobs = np.full(tokens.size, -0.5, np.float32)
    made = Rollout(
        group_id=0,
        index=0,
        seed=0,
        tokens=tokens,
        logprob_full=logprobs,
        logprob_sampled=logprobs,
        versions=np.full(tokens.size, version, np.int32),
        finish_reason="stop",
        worker="w0",
        text="7",
        reward=1.0,
    )
    return replace(made, **changes)


def make_group(
    rewards: Sequence[float | None] = (1.0, 0.0),
    *,
    lengths: Sequence[int] | None = None,
    version: int = 0,
    **changes: Any,
) -> Group:
    """A group with one sample per reward.

    Args:
      rewards: None for a sample whose scoring failed.
      lengths: tokens of each sample; default: 2, 3, ...
      changes: fields of the group; its ``id`` is its samples' ``group_id``.
    """
    number = changes.get("id", 0)
    rollouts = tuple(
        make_rollout(
            lengths[index] if lengths else 2 + index,
            version=version,
            group_id=number,
            index=index,
            seed=1000 * number + index,
            reward=reward,
            reward_error="it raised" if reward is None else None,
        )
        for index, reward in enumerate(rewards)
    )
    made = Group(id=number, attempt=1, prompt=make_prompt(str(number)), rollouts=rollouts)
    return replace(made, **changes)


def make_batch(
    step: int = 1, groups: Sequence[Group] | None = None, *, length: int = 12
) -> TrainBatch:
    """A batch with one sample per row.

    Args:
      groups: default: two of two samples, of the newest weights. Those without advantages
        get the reward less its group's mean.
      length: tokens of a row.
    """
    if groups is None:
        groups = [make_group(id=number, version=step - 1) for number in (2 * step, 2 * step + 1)]
    groups = [g if g.advantages is not None else _with_advantages(g) for g in groups]
    rows = sum(len(group.rollouts) for group in groups)
    return build_batch(step, groups, rows=rows, length=length)


def _with_advantages(group: Group) -> Group:
    rewards = group.rewards
    scored = ~np.isnan(rewards)
    mean = rewards[scored].mean() if scored.any() else 0.0
    return replace(group, advantages=np.where(scored, rewards - mean, 0.0))


def make_request(group_id: int = 0, samples: int = 2, **changes: Any) -> GroupRequest:
    """A request for ``samples`` samples of at most 8 tokens; token 1 ends one."""
    made = GroupRequest(
        group_id=group_id,
        attempt=1,
        prompt_tokens=np.array([4, 7], np.int32),
        seeds=tuple(1000 * group_id + index for index in range(samples)),
        sampling=SamplingParams(max_new_tokens=8, stop_ids=(1,)),
    )
    return replace(made, **changes)


def publish_version(
    store: WeightStore, path: str, arrays: Arrays, *, version: int = 0, canary: Canary | None = None
) -> WeightVersion:
    """Saves arrays and describes them as a run does: shapes, dtypes, fingerprints."""
    store.save(path, arrays)
    return WeightVersion(version, version, path, tensor_specs(arrays), canary)


def tensor_specs(arrays: Arrays) -> Mapping[str, TensorSpec]:
    """What a version says of its arrays."""
    host = {name: np.asarray(array) for name, array in arrays.items()}
    prints = fingerprint_numpy(host)
    return {name: TensorSpec(a.shape, a.dtype.name, int(prints[name])) for name, a in host.items()}
