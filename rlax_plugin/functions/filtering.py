"""Calls functions as filters, which see a scored group."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlax_plugin.functions.calling import chosen
from rlax_plugin.functions.returned import verdict
from rlax_plugin.functions.signatures import FILTER, Signature
from rlax_plugin.types import ScoredGroup


class FunctionFilter:
    """A function as a filter.

    Args:
      label: the reason for which it rejects a group if it returns False.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature, label: str):
        self._function, self._signature, self._label = function, signature, label

    def reject(self, group: ScoredGroup) -> str | None:
        """Returns the reason to reject a group; None: it is accepted."""
        given = chosen(self._signature, of_scored(group), group.prompt)
        return verdict(self._function(**given), self._signature.where, self._label)


def of_scored(group: ScoredGroup) -> dict[str, Any]:
    """Returns all values for a filter; the names of ``FILTER`` come before columns."""
    prompt, episodes = group.prompt, group.episodes
    own = (
        [episode.text for episode in episodes],
        [None if math.isnan(reward) else reward for reward in group.rewards.tolist()],
        prompt.text,
        prompt.reference,
        [episode.tokens for episode in episodes],
        [bool(episode.truncated) for episode in episodes],
        group.pass_rate_before,
        dict(prompt.metadata),
    )
    return {**prompt.metadata, **dict(zip(FILTER, own, strict=True))}
