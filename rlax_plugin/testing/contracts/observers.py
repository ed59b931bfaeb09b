"""Contract of observers: called with the records of a run, they return nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlax_plugin.ports.manager import HOOKS, Manager
from rlax_plugin.testing.builders import make_group, tensor_specs
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.store import weights
from rlax_plugin.types import WeightVersion

OBSERVERS = tuple(name for name in HOOKS if name.startswith("rlax_on_"))


def _calls(run_dir: Path) -> Mapping[str, list[dict[str, Any]]]:
    """What each hook is called with, in the order of a run."""
    mixed, failed = make_group((1.0, 0.0)), make_group((1.0, None), id=1)
    version = WeightVersion(1, 1, str(run_dir / "weights/1"), tensor_specs(weights()))
    return {
        "rlax_on_run_start": [{"run_dir": str(run_dir), "config_hash": "0123456789ab"}],
        "rlax_on_group_scored": [
            {"group": mixed, "rejected": None},
            {"group": failed, "rejected": "all rewards equal"},
        ],
        "rlax_on_step_end": [
            {"step": 1, "metrics": {"reward/mean": 0.5, "objective/entropy": float("nan")}},
            {"step": 2, "metrics": {}},
        ],
        "rlax_on_weights_published": [{"version": version}],
        "rlax_on_worker_lost": [{"worker": "local-0", "reason": "missed its heartbeats"}],
        "rlax_on_run_error": [{"error": "WorkerError: no worker is left"}],
    }


def check_observer(manager: Manager, hook: str, run_dir: Path, part: Inspection) -> bool:
    """One hook of the one plug-in that ``manager`` has loaded.

    Returns:
      Whether the plug-in implements it.
    """
    heard = True
    with part.rule(
        "takes the records of a run, with failed rewards and NaN, and returns None",
        "return nothing: what an observer returns goes nowhere",
    ):
        for arguments in _calls(run_dir)[hook]:
            results = manager.call(hook, **arguments)
            heard = bool(results)
            for _, result in results:
                require(result is None, f"it returned {result!r}")
    return heard
