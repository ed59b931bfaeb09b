"""Observer ``tally``: counts a run's events, in ``tally.json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.types import ScoredGroup
from rlax_plugin.config import NoOptions
from rlax_plugin.ports.observer import Observer
from rlax_plugin.ports.protocols import BuildContext

NAME = "tally.json"


class TallyConfig(NoOptions):
    """Counts scored groups and steps in the file ``tally.json``."""


class Tally(Observer):
    """Writes its counts beside the ledger at the end of each step.

    Scored groups and ended steps are counted once, even if the run was killed and resumed.
    """

    def __init__(self, path: Path):
        self._path = path
        self._counts: Counter[str] = Counter()
        self._rewards = 0.0  # of all groups so far

    @classmethod
    def build(cls, config: TallyConfig, context: BuildContext) -> Tally:
        return cls(context.run_dir / NAME)

    def on_group_scored(self, group: ScoredGroup, rejected: str | None) -> None:
        self._counts["accepted" if rejected is None else rejected] += 1
        self._rewards += float(np.nansum(group.rewards))

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._counts["steps"] += 1
        self._path.write_text(json.dumps({"step": step, **self.state()}))

    def state(self) -> dict[str, Any]:
        return {"counts": dict(self._counts), "rewards": self._rewards}

    def restore(self, state: dict[str, Any]) -> None:
        self._counts, self._rewards = Counter(state["counts"]), state["rewards"]
