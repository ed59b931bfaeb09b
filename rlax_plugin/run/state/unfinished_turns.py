"""Turns of unfinished episodes, which the ledger keeps until their group is scored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlax_plugin.base.types import Episode, Key, Prompt, ScoredGroup, Trajectory, Turn, Unscored
from rlax_plugin.run.state import samples
from rlax_plugin.run.state.read_samples import from_table

_NO_PROMPT = Prompt("", np.zeros(0, np.int32), "", "")


class RecordedTurn(NamedTuple):
    """A turn, and the key of the request that it was sampled for."""

    key: Key
    turn: Turn


def to_bytes(recorded: RecordedTurn) -> bytes:
    """Returns the turn as rows of ``samples``, in Arrow's format."""
    key, turn = recorded
    episode = Episode(key.sample or 0, (Trajectory((turn,)),))
    group = ScoredGroup(key.group, 1, _NO_PROMPT, (episode,), (Unscored("it is not over"),))
    return samples.to_arrow(samples.to_table([group]))


def from_bytes(key: Key, data: bytes) -> RecordedTurn:
    """Reads the bytes that ``to_bytes`` returned."""
    (recorded,) = from_table(samples.from_arrow(data))
    return RecordedTurn(key, recorded.group.episodes[0].trajectories[0].turns[0])
