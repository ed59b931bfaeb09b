"""Contracts of observers: they take a run's events, return nothing, and restore what they saw."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlax_plugin.ports.manager import Manager
from rlax_plugin.ports.observer import Observer, defect, storable
from rlax_plugin.testing.builders import make_group, make_version, tensor_specs
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.store import weights
from rlax_plugin.testing.contracts.trial import Trial

_TAKES = "takes the records of a run, with failed rewards and NaN, and returns None"
_NOTHING = "return nothing: the return value of an observer is ignored"
_STATE = (
    "return from state() everything that it remembers, as plain JSON with text keys, and set all "
    "of it in restore()"
)


def _calls(run_dir: Path) -> Mapping[str, list[dict[str, Any]]]:
    """The arguments of each event, in the order of a run."""
    mixed, failed = make_group((1.0, 0.0)), make_group((1.0, None), id=1)
    version = make_version(1, str(run_dir / "weights/1"), tensor_specs(weights()))
    return {
        "run_start": [{"run_dir": str(run_dir), "config_hash": "0123456789ab"}],
        "group_scored": [
            {"group": mixed, "rejected": None},
            {"group": failed, "rejected": "all rewards equal"},
        ],
        "step_end": [
            {"step": 1, "metrics": {"reward/mean": 0.5, "objective/entropy": float("nan")}},
            {"step": 2, "metrics": {}},
        ],
        "weights_published": [{"version": version}],
        "worker_lost": [{"worker": "local-0", "reason": "missed its heartbeats"}],
        "run_error": [{"error": "WorkerError: no worker is left"}],
    }


def check_hook(manager: Manager, event: str, run_dir: Path, part: Inspection) -> bool:
    """Checks ``rlax_on_<event>`` of the one plug-in that ``manager`` has loaded.

    Returns:
      True if the plug-in implements the hook.
    """
    heard = True
    with part.rule(_TAKES, _NOTHING):
        for arguments in _calls(run_dir)[event]:
            results = manager.call(f"rlax_on_{event}", **arguments)
            heard = bool(results)
            for _, result in results:
                require(result is None, f"it returned {result!r}")
    return heard


def check_observer(trial: Trial, part: Inspection) -> None:
    """Sends the events of a run, and checks that another process can restore the state."""
    observer: Observer = trial.built(part)
    wrong = defect(observer)
    calls = _calls(trial.run_dir)
    with part.rule(
        _TAKES,
        "derive it from rlax_plugin.api.Observer, and copy the arguments of its methods; "
        f"{_NOTHING}",
    ):
        require(wrong is None, f"it {wrong}")
        for event in calls:
            _tell(observer, calls, event)
    if not part.sound:
        return
    with part.rule("a fresh one that restores the state goes on as the old one would", _STATE):
        state = observer.state()
        stored = _stored(state)
        fresh: Observer = trial.build()
        fresh.restore(_stored(stored))
        restored = _stored(fresh.state())
        require(restored == stored, f"its state was {stored}, restored it is {restored}")
        for event in ("run_start", "group_scored", "step_end"):
            for one in (observer, fresh):
                _tell(one, calls, event)
        require(state == stored, "state() is no copy: it changes with the events that follow")
        expected, after = _stored(observer.state()), _stored(fresh.state())
        require(after == expected, f"its state would be {expected}, after a restore it is {after}")


def _tell(observer: Observer, calls: Mapping[str, list[dict[str, Any]]], event: str) -> None:
    for arguments in calls[event]:
        result = getattr(observer, f"on_{event}")(**arguments)
        require(result is None, f"on_{event} returned {result!r}")


def _stored(state: object) -> dict[str, Any]:
    try:
        return storable(state)
    except ValueError as error:
        require(False, f"it {error}")
        raise
