"""docs/plugin_hooks.md says what hookspecs.py says, and its examples are a run."""

import inspect
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from documents import fences, read, sections
from installs import on_path
from runs import Run

from rlax_plugin import api
from rlax_plugin.build import Registry
from rlax_plugin.ports import hookspecs
from rlax_plugin.ports.kinds import ALL, BY_NAME, Kind
from rlax_plugin.ports.manager import HOOKS, Manager
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.testing import check_plugin

HOOKS_MD = read("plugin_hooks.md")
TOLD = {name: text for name, text in sections(HOOKS_MD, 3).items() if name.startswith("rlax_")}
(CONFIG,) = fences(HOOKS_MD, "yaml")
STEPS = 20
WORKERS = ("here-0", "here-1")


def signatures() -> dict[str, str]:
    """As an author would write them; the annotations of ``hookspecs`` are texts."""
    hooks = {**hookspecs.REGISTER, **hookspecs.OBSERVE}
    return {name: f"{name}{inspect.signature(f)}".replace("'", "") for name, f in hooks.items()}


def test_every_hook_is_documented_with_its_signature() -> None:
    assert sorted(TOLD) == sorted(HOOKS)
    found = {name: text.strip().splitlines()[0] for name, text in TOLD.items()}
    assert found == {name: f"`{text}`" for name, text in signatures().items()}


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_when_where_and_what(name: str) -> None:
    words = ["**Chosen by**", "**Built**", "**The part**"]
    wanted = words if name.startswith("rlax_register_") else ["**When**", "**Arguments**"]
    assert re.findall(r"^- (\*\*[\w ]+\*\*)", TOLD[name], re.MULTILINE) == wanted
    (example,) = fences(TOLD[name], "python")
    assert f"@hookimpl\ndef {name}(" in example


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_kind_is_documented_with_its_places_and_its_interface(kind: Kind) -> None:
    places = [key for key in kind.config_keys if "NAME" not in key]
    assert all(f"`{key}`" in TOLD[kind.hook] for key in places)
    interface = kind.part.partition(" -> ")[0]
    assert f"`{interface}`" in TOLD[kind.hook] and hasattr(api, interface)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All examples as one plug-in, each of them as another, and the config of their run."""
    folder = tmp_path_factory.mktemp("hooks")
    examples = {name: fences(text, "python")[0] for name, text in TOLD.items()}
    for name, example in examples.items():
        (folder / f"example_{name}.py").write_text(example)
    (folder / "hook_examples.py").write_text("\n\n".join(examples.values()))
    (folder / "run.yml").write_text(CONFIG)
    with on_path(folder):
        yield folder


@pytest.mark.parametrize("kind", BY_NAME)
def test_every_example_registers_and_builds_alone(folder: Path, kind: str) -> None:
    name = f"example_rlax_register_{kind}"
    registry = Registry(Manager([name]))
    ((part, offer),) = registry.offers[kind].items()
    assert not any(offers for other, offers in registry.offers.items() if other != kind)
    assert part in CONFIG or kind in ("importance_weight", "selection")
    if kind in ("rollout_engine", "trainer"):
        return  # built from other parts of a run: the run below does
    context = BuildContext(run_dir=folder, seed=0, section=None)
    built = offer.extension.build(offer.extension.config_class(), context)
    assert built is not None


def test_the_examples_keep_the_contracts_of_their_kinds(folder: Path) -> None:
    checked = check_plugin("hook_examples")
    hooks = [one.name for one in checked if one.kind == "hook"]
    assert sorted(hooks) == sorted(hookspecs.OBSERVE)
    assert {one.kind for one in checked} - {"hook"} == set(BY_NAME)
    untried = {one.kind for one in checked if not one.rules}
    assert untried == {"rollout_engine", "trainer"}  # of a model of their own


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    """A run of all examples. Once it has learnt, its workers fall silent; then its disk fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        run = Run(
            folder, "rlax.deadlines.heartbeat_s=0.3", config=str(folder / "run.yml"), name="hooks"
        )
        try:
            run.until(lambda: len(run.steps()) >= STEPS, f"{STEPS} steps")
            workers = run.workers()
            for worker in workers:
                worker.send_signal(signal.SIGSTOP)
            losses = "the losses of both workers"
            run.until(lambda: all(f"{name} is gone: " in log(run) for name in WORKERS), losses)
            # Nothing is generated now, so nothing is written there. Any later batch fails.
            shutil.rmtree(run.dir / "samples")
            (run.dir / "samples").touch()
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
            status, out = run.end()
            assert status == 1 and "/samples" in out
            yield run
        finally:
            Run.end_all()


def log(run: Run) -> str:
    path = run.dir / "logs/trainer.log"
    return path.read_text() if path.exists() else ""


def test_the_examples_train_together(run: Run) -> None:
    rewards = [step["reward/mean"] for step in run.steps()]
    assert np.mean(rewards[:3]) < 0.3 and np.mean(rewards[STEPS - 3 : STEPS]) > 0.5
    lines = [line.split(",") for line in (run.dir / "metrics.csv").read_text().splitlines()]
    tracked = [float(value) for _, name, value in lines if name == "reward/mean"]
    assert tracked == rewards
    step, rate = (run.dir / "pass_rate.txt").read_text().split(": ")
    assert int(step) == len(rewards) and 0.3 < float(rate) <= 1


def test_every_hook_of_an_event_is_called_in_the_run(run: Run) -> None:
    told = log(run)
    steps = len(run.steps())
    assert f"run {run.dir.relative_to(run.dir.parents[1])} of config" in told
    assert told.count("]: accepted") >= 4 * steps and "'a' got [" in told
    assert len(re.findall(r": reward [01]\.", told)) == steps and "version 0 is at" in told
    assert [f"{name} is gone: no heartbeat" in told for name in WORKERS] == [True, True]
    assert told.count("the run failed: ") == 1 and "/samples" in told
