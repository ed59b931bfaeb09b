"""An observer's state counts each scored group and each step once, though a run is interrupted.

After kills at every fault point it is that of an undisturbed run, too: see ``test_recovery``.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import HELPERS, Run, held, plugins

STEPS = 8
SETTINGS = (
    "rlax.deterministic=true",
    "rlax.observers=[{name: tally}]",
    "rlax.trainer.checkpoint_every=3",
    "rlax.evaluation.problems=0",
    f"steps={STEPS}",
)
PLUGIN = """
from pathlib import Path

from rlax_plugin.api import Extension, Launcher, NoOptions, Observer, WorkerError, hookimpl

class Numbers(Observer):
    def state(self):
        return {"groups": {1: 2}}

class Broken(Observer):
    def on_step_end(self, step, metrics):
        return 1 / (2 - step)

class Told(Observer):
    def on_run_error(self, error):
        Path("told.txt").write_text(error)

class Careless:
    def reject(self, group):
        return group.rewards.mean() >= 0

class Nowhere(Launcher):
    async def start(self, controller, run_dir, token_file):
        raise WorkerError("no machine is free")

    async def stop(self):
        pass

@hookimpl
def rlax_register_launcher():
    return {"nowhere": Extension(NoOptions, lambda o, c: Nowhere())}

@hookimpl
def rlax_register_filter():
    return {"careless": Extension(NoOptions, lambda o, c: Careless())}

@hookimpl
def rlax_register_observer():
    parts = {"numbers": Numbers, "broken": Broken, "told": Told}
    return {n: Extension(NoOptions, lambda o, c, p=p: p()) for n, p in parts.items()}
"""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    Run.end_all()


def tally(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "runs/testing/tally.json").read_text())


def test_a_step_that_ended_before_its_checkpoint_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped trainer writes the checkpoint of a step that it has reported already."""
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    go = tmp_path / "go"
    settings = (*SETTINGS, *held({6: go}, "checkpoint_every: 9", "train_s: 0.3"))
    stopped = Run(tmp_path, *settings)
    stopped.until(lambda: len(stopped.steps()) >= 2, "two steps")
    stopped.process.send_signal(signal.SIGTERM)
    status, out = stopped.end()
    assert status == 130, out
    go.touch()
    again = Run(tmp_path, *settings)
    assert again.end()[0] == 0
    samples = again.samples()
    groups = {row["group"]: row["rejected"] or "accepted" for row in samples}
    rewards = sum(row["reward"] for row in samples)
    counts = {"steps": STEPS, **Counter(groups.values())}
    assert counts["accepted"] == 4 * STEPS and rewards > 0
    assert tally(tmp_path) == {"step": STEPS, "counts": counts, "rewards": rewards}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("numbers", "has a state that JSON cannot keep: the key 1 of state()['groups']"),
        ("broken", "failed in on_step_end: ZeroDivisionError: division by zero"),
    ],
)
def test_an_observer_that_fails_stops_the_run_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    (tmp_path / "two_observers.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    chosen = f"rlax.observers=[{{name: tally}}, {{name: {name}}}]"
    status, out = Run(tmp_path, *SETTINGS, chosen, plugins("two_observers")).end()
    assert status == 2, out  # as for any plug-in that breaks its contract
    said = " ".join(out.split())
    assert f"plug-in 'two_observers': rlax.observers.1 = '{name}' {told}" in said
    assert tally(tmp_path)["step"] == 2  # the state is asked for at the checkpoint of step 3


def test_so_does_a_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_filter.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    chosen = "rlax.curation.filters=[{name: careless}]"
    status, out = Run(tmp_path, *SETTINGS, chosen, plugins("a_filter")).end()
    assert status == 2, out
    said = " ".join(out.split())
    part = "error: plug-in 'a_filter': rlax.curation.filters.0 = 'careless'"
    assert f"{part} returned np.True_ from reject: must be None" in said
    assert "Traceback" not in said


def test_an_observer_hears_why_a_run_could_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_machine.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    chosen = ("rlax.observers=[{name: told}]", "rlax.launcher={name: nowhere}")
    status, out = Run(tmp_path, *SETTINGS, *chosen, plugins("no_machine")).end()
    assert status not in (0, 130) and "no machine is free" in out
    assert (tmp_path / "told.txt").read_text() == "no machine is free"
