"""The filter ``distinct``, which rejects groups with too many identical completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlax_plugin.api import Filter, ScoredGroup, Section


class DistinctConfig(Section):
    """Accepts a group if enough of its samples differ from each other.

    If nearly all samples of a prompt are the same, token for token, the policy has collapsed on
    this prompt, and the group says almost nothing that its first sample does not say. Short answers
    are often the same although nothing is wrong, so use this filter where completions are long
    enough to differ, such as with reasoning.
    """

    minimum: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.25,
        description="smallest share of samples that differ from all samples before them, the first "
        "sample left out: 0 if all samples are the same, 1 if no two are. With 16 samples, 0.25 "
        "asks for at least 5 different ones",
    )


class Distinct(Filter):
    """Rejects groups with too few different completions; a group of one sample is accepted."""

    def __init__(self, config: DistinctConfig) -> None:
        self._minimum = config.minimum

    def reject(self, group: ScoredGroup) -> str | None:
        samples = len(group.episodes)
        # What the policy sampled, turn by turn; what an environment gave is not its own.
        different = {tuple(s.tokens.tobytes() for s in e.sampled) for e in group.episodes}
        if samples < 2 or (len(different) - 1) / (samples - 1) >= self._minimum:
            return None
        return "too few different completions"
