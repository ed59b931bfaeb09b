"""Makes records with sensible contents, so a test only gives the fields that it is about.

A keyword sets a field of the record; all others have defaults that fit each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlax_plugin.base.types import (
    BASE,
    EMPTY,
    Canary,
    Episode,
    Key,
    Prompt,
    Request,
    Sampled,
    SamplingParams,
    Score,
    ScoredGroup,
    TensorSpec,
    TrainBatch,
    Trajectory,
    Turn,
    Unscored,
    VersionPart,
    WeightVersion,
)
from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.training.objective.batches import build_arrays
from rlax_plugin.weights.fingerprint import fingerprint_numpy


def make_prompt(text: str = "7", reference: str = "7", **changes: Any) -> Prompt:
    """A prompt of one token per character; its id is the text's hash."""
    made = Prompt(
        id=hashlib.sha256(text.encode()).hexdigest()[:16],
        tokens=np.array([2 + ord(c) % 60 for c in text], np.int32),
        text=text,
        reference=reference,
    )
    return replace(made, **changes)


def make_rates(
    size: int, counts: Mapping[int, tuple[int, int]], *, version: int = 0, half_life: float = 32.0
) -> PassRateTable:
    """A pass-rate table, as a sampler sees it.

    Args:
      size: number of prompts.
      counts: index of a prompt -> passed and failed samples of policy ``version``.
    """
    table = PassRateTable(size, half_life)
    for index, (passed, failed) in counts.items():
        table.observe(index, passed, failed, version)
    return table


def make_sampled(length: int = 3, *, version: int = 0, **changes: Any) -> Sampled:
    """A sample of ``length`` tokens, all of one version, that ended with a stop id.

    Args:
      changes: fields; with ``tokens`` given, the other arrays get their length from it.
    """
    tokens = np.asarray(changes.pop("tokens", np.arange(4, 4 + length)), np.int32)
    made = Sampled(
        seed=0,
        tokens=tokens,
        logprobs=np.full(tokens.size, -0.5, np.float32),
        versions=np.full(tokens.size, version, np.int32),
        finish="stop",
        workers=("w0",),
    )
    return replace(made, **changes)


def make_episode(
    *turns: Turn | Sampled, index: int = 0, prompt: Prompt | None = None, **changes: Any
) -> Episode:
    """An episode of one trajectory.

    Args:
      turns: a ``Sampled`` stands for the turn after the prompt; default: one such turn.
      prompt: prompt of the first turn; default: ``make_prompt()``.
      changes: fields of the episode.
    """
    given = (prompt or make_prompt()).tokens
    made = tuple(
        one if isinstance(one, Turn) else Turn(given, one) for one in turns or (make_sampled(),)
    )
    return replace(Episode(index, (Trajectory(made),), text="7"), **changes)


def make_group(
    rewards: Sequence[float | None] = (1.0, 0.0),
    *,
    lengths: Sequence[int] | None = None,
    version: int = 0,
    **changes: Any,
) -> ScoredGroup:
    """A group with one episode of one turn per reward.

    Args:
      rewards: None for an episode whose scoring failed.
      lengths: tokens of each sample; default: 2, 3, ...
      changes: fields of the group.
    """
    number = changes.get("id", 0)
    prompt = changes.pop("prompt", None) or make_prompt(str(number))
    episodes = tuple(
        make_episode(
            make_sampled(
                lengths[index] if lengths else 2 + index,
                version=version,
                seed=1000 * number + index,
            ),
            index=index,
            prompt=prompt,
        )
        for index in range(len(rewards))
    )
    scores = tuple(
        Unscored("it raised") if reward is None else Score(reward, (reward,)) for reward in rewards
    )
    made = ScoredGroup(number, 1, prompt, episodes, scores)
    return replace(made, **changes)


def make_batch(step: int = 1, groups: Sequence[ScoredGroup] | None = None) -> TrainBatch:
    """A batch whose advantages are each reward minus its group's mean.

    Args:
      groups: default: two groups of two samples each, of the newest weights.
    """
    if groups is None:
        groups = [make_group(id=number, version=step - 1) for number in (2 * step, 2 * step + 1)]
    return TrainBatch(step, tuple(groups), tuple(map(_advantages, groups)))


def make_arrays(batch: TrainBatch, *, length: int = 12) -> dict[str, np.ndarray]:
    """The arrays of a batch, with one trajectory per row.

    Args:
      length: number of tokens in a row.
    """
    rows = sum(len(e.trajectories) for group in batch.groups for e in group.episodes)
    return build_arrays(batch, rows=rows, length=length)


def _advantages(group: ScoredGroup) -> np.ndarray:
    rewards = group.rewards
    scored = ~np.isnan(rewards)
    mean = rewards[scored].mean() if scored.any() else 0.0
    return np.where(scored, rewards - mean, 0.0)


def make_request(group: int = 0, samples: int = 2, **changes: Any) -> Request:
    """A training request for ``samples`` samples of at most 8 tokens; token 1 ends a sample."""
    made = Request(
        key=Key("train", group),
        attempt=1,
        context=np.array([4, 7], np.int32),
        seeds=tuple(1000 * group + index for index in range(samples)),
        sampling=SamplingParams(max_new_tokens=8, stop_ids=(1,)),
    )
    return replace(made, **changes)


def publish_version(
    store: WeightStore, path: str, arrays: Arrays, *, version: int = 0, canary: Canary | None = None
) -> WeightVersion:
    """Saves arrays and returns their version: shapes, dtypes and fingerprints, as in a run."""
    store.save(path, arrays)
    return make_version(version, path, tensor_specs(arrays), canary)


def make_version(
    version: int = 0,
    path: str = "/weights/0",
    tensors: Mapping[str, TensorSpec] = EMPTY,
    canary: Canary | None = None,
) -> WeightVersion:
    """A version of one part."""
    return WeightVersion(version, version, (VersionPart(BASE, path, dict(tensors)),), canary)


def tensor_specs(arrays: Arrays) -> Mapping[str, TensorSpec]:
    """Specs of arrays, as a version has them."""
    host = {name: np.asarray(array) for name, array in arrays.items()}
    prints = fingerprint_numpy(host)
    return {name: TensorSpec(a.shape, a.dtype.name, int(prints[name])) for name, a in host.items()}
