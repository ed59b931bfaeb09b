"""Hooks and observers are told of a run's events, and a state counts each of them once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installs import on_path, write

from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import PluginError
from rlax_plugin.ports.manager import Manager
from rlax_plugin.ports.observer import MOST_BYTES, Observer, defect
from rlax_plugin.run.controller.chosen import Chosen
from rlax_plugin.run.controller.observers import Observers
from rlax_plugin.testing import make_group

HOOK = """
    from rlax_plugin.api import hookimpl
    heard = []

    @hookimpl
    def rlax_on_step_end(step):
        heard.append(step)
        if step == 13:
            raise ValueError("unlucky")
"""


class Recorder(Observer):
    """Remembers what it is told, in the words of its state."""

    def __init__(self, fails_at: str = ""):
        self.heard: list[str] = []
        self._fails_at = fails_at

    def _hear(self, what: str) -> None:
        if what == self._fails_at:
            raise KeyError(what)
        self.heard.append(what)

    def on_run_start(self, run_dir: str, config_hash: str) -> None:
        self._hear(f"start {config_hash}")

    def on_group_scored(self, group: Any, rejected: str | None) -> None:
        self._hear(f"group {group.id} {rejected}")

    def on_step_end(self, step: int, metrics: Any) -> None:
        self._hear(f"step {step}")

    def on_run_error(self, error: str) -> None:
        self._hear(f"error {error}")

    def state(self) -> Any:
        return {"heard": self.heard}

    def restore(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with on_path(tmp_path):
        yield tmp_path


class Failures(Supervision):
    """Keeps every failure, not only the first."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)
        super().fail(error)


def observers(
    *parts: Observer, hooks: tuple[str, ...] = ()
) -> tuple[Observers, list[BaseException]]:
    """Of these parts, and of plug-ins with hooks; with the errors that they report."""
    failures = Failures()
    chosen = [
        Chosen(f"rlax.observers.{i}", f"part{i}", "tb_plugin", p) for i, p in enumerate(parts)
    ]
    return Observers(Manager(hooks), chosen, failures), failures.errors


def test_hooks_and_observers_are_told_in_the_order_of_the_config(folder: Path) -> None:
    write(folder, "tb_hook", HOOK)
    one, other = Recorder(), Recorder()
    them, errors = observers(one, other, hooks=("tb_hook",))
    them.notify("run_start", run_dir="d", config_hash="c")
    them.notify("group_scored", group=make_group((1.0,), id=4), rejected="too easy")
    them.notify("step_end", step=1, metrics={})
    assert one.heard == other.heard == ["start c", "group 4 too easy", "step 1"]
    assert __import__("tb_hook").heard == [1] and not errors


def test_an_observer_is_told_of_the_start_first_and_then_of_what_came_before(folder: Path) -> None:
    """Weights are published while a run recovers; a state that is restored must not hide that."""
    write(folder, "tb_hook", HOOK)
    one = Recorder()
    them, _ = observers(one, hooks=("tb_hook",))
    them.notify("step_end", step=7, metrics={})
    assert one.heard == [] and __import__("tb_hook").heard == [7]
    them.restore({"states": {"part0": {"heard": ["step 5", "step 6"]}}})
    them.notify("run_start", run_dir="d", config_hash="c")
    them.notify("step_end", step=8, metrics={})
    assert one.heard == ["step 5", "step 6", "start c", "step 7", "step 8"]


def test_a_run_that_fails_before_it_starts_is_told(folder: Path) -> None:
    one = Recorder()
    them, _ = observers(one)
    them.notify("worker_lost", worker="w", reason="left")
    them.notify("run_error", error="no worker came")
    assert one.heard == ["error no worker came"]


def test_what_is_told_again_reaches_observers_and_no_hook(folder: Path) -> None:
    write(folder, "tb_hook", HOOK)
    one = Recorder()
    them, _ = observers(one, hooks=("tb_hook",))
    them.notify("run_start", run_dir="d", config_hash="c")
    them.notify_again("step_end", step=3, metrics={})
    assert one.heard == ["start c", "step 3"] and __import__("tb_hook").heard == []


def test_a_state_is_that_of_the_moment_and_comes_back_in_another_process() -> None:
    first, second = Recorder(), Recorder()
    them, _ = observers(first, second)
    them.notify("run_start", run_dir="d", config_hash="c")
    document = them.state()
    them.notify("step_end", step=1, metrics={})
    states = {f"part{i}": {"heard": ["start c"]} for i in (0, 1)}
    assert document == {"last_step": 0, "states": states} and them.state()["last_step"] == 1
    again = [Recorder(), Recorder(), Recorder()]
    resumed, _ = observers(*again)
    resumed.restore(document | {"last_step": 4})
    assert resumed.last_step == 4
    assert [one.heard for one in again] == [["start c"], ["start c"], []]


def test_a_failure_names_plugin_and_part_and_ends_the_states() -> None:
    """The event that failed is missing in the state, and would not be told again."""
    fails, behind = Recorder(fails_at="step 2"), Recorder()
    them, errors = observers(fails, behind)
    them.notify("run_start", run_dir="d", config_hash="c")
    them.notify("step_end", step=1, metrics={})
    them.state()
    them.notify("step_end", step=2, metrics={})
    (error,) = errors
    assert "plug-in 'tb_plugin': rlax.observers.0 = 'part0' failed in on_step_end: " in str(error)
    assert isinstance(error.__cause__, KeyError) and "test_observers.py:" in str(error)
    with pytest.raises(PluginError) as caught:
        them.state()
    assert caught.value is error
    them.notify("run_error", error="it failed")
    assert fails.heard[-1] == behind.heard[-1] == "error it failed"


def test_a_checkpoint_is_saved_although_another_part_of_the_run_has_failed() -> None:
    supervision = Supervision()
    one = Recorder()
    them = Observers(Manager(()), [Chosen("rlax.observers.0", "a", "p", one)], supervision)
    them.notify("run_start", run_dir="d", config_hash="c")
    supervision.fail(PluginError("a filter raised"))
    assert them.state()["states"] == {"a": {"heard": ["start c"]}}


def test_two_of_a_name_keep_their_states_when_another_comes() -> None:
    def made(*names: str) -> tuple[Observers, list[Recorder]]:
        parts = [Recorder() for _ in names]
        chosen = [Chosen(f"rlax.observers.{i}", n, "p", parts[i]) for i, n in enumerate(names)]
        return Observers(Manager(()), chosen, Supervision()), parts

    them, (one, two) = made("a", "a")
    one.heard, two.heard = ["first"], ["second"]
    other, parts = made("b", "a", "a")
    other.restore(them.state())
    assert [part.heard for part in parts] == [[], ["first"], ["second"]]


def test_a_failing_hook_is_reported_the_same_way(folder: Path) -> None:
    write(folder, "tb_hook", HOOK)
    them, errors = observers(Recorder(), hooks=("tb_hook",))
    them.notify("step_end", step=13, metrics={})
    assert "plug-in 'tb_hook' failed in rlax_on_step_end: ValueError: unlucky" in str(errors[0])
    with pytest.raises(PluginError, match="unlucky"):
        them.state()


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ([1], "returned list from state, expected a dict"),
        ({"seen": {1, 2}}, "that JSON cannot keep: Object of type set is not JSON serializable"),
        ({"by_step": {3: 0.5}}, "would come back as a list, or a key as a text"),
        ({"last": [0, (1, 2)]}, "a tuple in it would come back as a list"),
        ({"text": "x" * MOST_BYTES}, "has a state of 1,000,012 bytes: at most 1,000,000"),
    ],
)
def test_a_state_that_cannot_be_kept_names_the_part(state: Any, told: str) -> None:
    one = Recorder()
    one.state = lambda: state
    them, _ = observers(Recorder(), one)
    prefix = r"^plug-in 'tb_plugin': rlax\.observers\.1 = 'part1' .*"
    with pytest.raises(PluginError, match=prefix + told):
        them.state()


def test_a_state_of_a_megabyte_is_kept() -> None:
    one = Recorder()
    one.heard = ["x" * (MOST_BYTES - len('{"heard": [""]}'))]
    them, _ = observers(one)
    assert them.state()["states"] == {"part0": {"heard": one.heard}}
    one.heard[0] += "x"
    with pytest.raises(PluginError):
        them.state()


def test_a_restore_that_fails_names_the_part() -> None:
    them, _ = observers(Recorder())
    with pytest.raises(PluginError, match=r"rlax\.observers\.0 = 'part0' failed in restore: KeyE"):
        them.restore({"states": {"part0": {}}})


def test_what_no_observer_can_be_is_told() -> None:
    class Short(Observer):
        def on_step_end(self, step):
            pass

    class Misspelt(Observer):
        def on_stepend(self, step, metrics):
            pass

    class Renamed(Observer):
        def on_worker_lost(self, name, why):
            pass

    class Yields(Observer):
        def on_step_end(self, step, metrics):
            yield step

    class Later(Observer):
        async def on_worker_lost(self, worker, reason):
            pass

    assert defect(Observer()) is defect(Recorder()) is None
    assert "has on_step_end, which must take (step, metrics): " in str(defect(Short()))
    assert "has on_stepend, which is no event; did you mean" in str(defect(Misspelt()))
    assert "has on_worker_lost, which must take (worker, reason): " in str(defect(Renamed()))
    assert "has on_step_end as a generator, which would never run" in str(defect(Yields()))
    assert "on_worker_lost is a coroutine function, and is called without" in str(defect(Later()))
