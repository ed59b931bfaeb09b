"""What each tracker has written, read back with its own library's reader; no network."""

import asyncio
import functools
import importlib
import json
import math
import os
import sqlite3
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rlax_mlflow
import rlax_tensorboard
import rlax_wandb
from sections import section_with
from wandb_files import history, wandb_records

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config.loading import resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.run.metrics import tracking
from rlax_plugin.run.metrics.tracking import BackgroundTracker, Sink, TrackedRun

CONFIG = str(Path(__file__).parents[3] / "configs/testing.yml")  # of ten steps
DEADLINE_S = 60
LIBRARIES = {rlax_mlflow: "mlflow.tracking", rlax_tensorboard: "tensorboardX", rlax_wandb: "wandb"}
NAN, INFINITY = math.nan, math.inf


@pytest.fixture(autouse=True)
def nothing_calls_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def context(run_dir: Path) -> BuildContext:
    return BuildContext(
        run_dir=run_dir,
        seed=0,
        section=section_with(),
        config=resolve(CONFIG, ["rlax.trackers=[{name: secret, key: hunter2}]"]),
        run_url=str(run_dir),
    )


def build(plugin: Any, run_dir: Path, **options: Any) -> BackgroundTracker:
    """The plug-in's tracker, for one process of a run."""
    ((_, extension),) = plugin.rlax_register_tracker().items()
    config = extension.config_class(**options)
    if library := LIBRARIES.get(plugin):
        importlib.import_module(library)  # which may take longer than the config allows
    tracker = extension.build(config, context(run_dir))
    tracker._flush_s = 240.0  # more than a config may say, for a machine that stalls
    return tracker


def log_steps(tracker: BackgroundTracker, steps: range, **more: float) -> None:
    for step in steps:
        tracker.log(step, {"reward/mean": step / 10, "time/step_s": 0.5, **more})
    assert tracker.close() is None


def test_a_tracker_is_given_no_secrets(tmp_path: Path) -> None:
    secrets = ["hf_access_token=s-1", "rlax.rewards=[{name: even, api_key: s-2, n: 1}]"]
    given = replace(context(tmp_path), config=resolve(CONFIG, [*secrets, "rlax.seed=3"]))
    run = TrackedRun.of(given)
    assert run.settings()["hf_access_token"] == "[secret]" and run.settings()["rlax.seed"] == 3
    assert run.config["rlax"]["rewards"] == [{"name": "even", "api_key": "[secret]", "n": 1}]
    first = run.run_id("mlflow", "http://me:s-3@host rlax", lambda: "7")
    assert first == run.run_id("mlflow", "http://me:s-3@host rlax", lambda: "8")
    assert run.files.get_json("trackers/mlflow.json") == {"http://[secret]@host rlax": "7"}


# --- the thread ------------------------------------------------------------------------------


class Held(Sink):
    """Writes once it may, and fails at the given steps."""

    def __init__(self, last_step: int = 0, broken: tuple[int, ...] = ()):
        self.last_step, self.broken = last_step, broken
        self.may = threading.Event()
        self.steps: list[int] = []
        self.complete: bool | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.may.wait(DEADLINE_S)
        if step in self.broken:
            raise OSError(f"disk full at {step}")
        self.steps.append(step)

    def close(self, complete: bool) -> None:
        self.complete = complete


def held(sink: Sink, tmp_path: Path, flush_s: float = DEADLINE_S) -> BackgroundTracker:
    return BackgroundTracker("held", lambda run: sink, context(tmp_path), flush_s)


def test_log_does_not_wait_and_close_does(tmp_path: Path) -> None:
    sink = Held()
    tracker = held(sink, tmp_path)
    for step in range(1, 11):
        tracker.log(step, {"a/b": 1.0})
    assert sink.steps == []
    sink.may.set()
    assert tracker.close() is None
    assert sink.steps == list(range(1, 11)) and sink.complete is True


def test_what_is_logged_again_is_left_out_and_an_early_end_is_told(tmp_path: Path) -> None:
    sink = Held(last_step=4)
    sink.may.set()
    log_steps(held(sink, tmp_path), range(3, 8))
    assert sink.steps == [5, 6, 7] and sink.complete is False


def test_a_failing_write_is_counted_and_told(tmp_path: Path) -> None:
    sink = Held(broken=(2, 3))
    sink.may.set()
    tracker = held(sink, tmp_path)
    for step in range(1, 6):
        tracker.log(step, {})
    told = tracker.close() or ""
    assert sink.steps == [1, 4, 5]
    assert "2 of 5 steps were not written" in told and "disk full at 3" in told


def test_a_queue_that_is_full_loses_the_newest(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tracking, "QUEUE_STEPS", 3)
    taking = threading.Event()

    class Slow(Held):
        def write(self, step: int, metrics: Mapping[str, float]) -> None:
            taking.set()
            super().write(step, metrics)

    sink = Slow()
    tracker = held(sink, tmp_path)
    tracker.log(1, {})
    assert taking.wait(DEADLINE_S)
    for step in range(2, 9):
        tracker.log(step, {})
    sink.may.set()
    assert "4 of 8 steps" in (tracker.close() or "")
    assert sink.steps == [1, 2, 3, 4]


def test_a_sink_that_hangs_costs_flush_s_and_no_more(tmp_path: Path) -> None:
    sink = Held()
    tracker = held(sink, tmp_path, flush_s=0.05)
    tracker.log(1, {})
    told = tracker.close() or ""
    assert "longer than flush_s = 0.05 s" in told and "1 of 1 steps" in told
    sink.may.set()


def test_a_sink_that_cannot_be_opened_stops_the_run_at_once(tmp_path: Path) -> None:
    def reject(run: TrackedRun) -> Sink:
        raise ConnectionError("no such host")

    async def run() -> tuple[BackgroundTracker, Any]:
        heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, what: heard.set_result(what["exception"]))
        tracker = BackgroundTracker("far", reject, context(tmp_path), DEADLINE_S)
        return tracker, await asyncio.wait_for(heard, DEADLINE_S)

    tracker, error = asyncio.run(run())
    assert isinstance(error, RlaxError) and isinstance(error.__cause__, ConnectionError)
    assert str(error) == "tracker far cannot be opened: ConnectionError: no such host"
    with pytest.raises(RlaxError, match="no such host"):
        tracker.log(1, {})
    assert tracker.close() is None


def test_trackers_of_one_kind_that_are_opened_at_once_each_keep_their_id(tmp_path: Path) -> None:
    run = TrackedRun("run", tmp_path, RunFiles(tmp_path), {}, 1)
    given: dict[str, str] = {}

    def slowly(where: str) -> str:
        time.sleep(0.01)
        return f"id of {where}"

    def open_it(where: str) -> None:
        given[where] = run.run_id("wandb", where, lambda: slowly(where))

    threads = [threading.Thread(target=open_it, args=(f"project {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert RunFiles(tmp_path).get_json("trackers/wandb.json") == given
    assert len(given) == 8


@pytest.mark.parametrize(
    ("plugin", "package"),
    [(rlax_wandb, "wandb"), (rlax_mlflow, "mlflow"), (rlax_mlflow, "sqlalchemy")],
)
def test_a_missing_package_is_named_with_what_to_install(
    plugin: Any, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ((name, extension),) = plugin.rlax_register_tracker().items()
    for function in (extension.build, extension.check):
        with pytest.raises(ConfigError) as caught:
            function(extension.config_class(), context(tmp_path))
        assert f"needs the package {package}" in str(caught.value)
        assert f"pip install '.[{name}]' in a checkout" in str(caught.value)


# --- tensorboard -----------------------------------------------------------------------------


def test_tensorboard_shows_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its reader then does without TensorFlow, whose import takes 20 s.
    no_tensorflow = "tensorboard.compat.notf"
    monkeypatch.setitem(sys.modules, no_tensorflow, types.ModuleType(no_tensorflow))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_steps(build(rlax_tensorboard, tmp_path), range(1, 6), **{"a/nan": NAN})
    log_steps(build(rlax_tensorboard, tmp_path), range(4, 8))  # perhaps within the same second
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    rewards = [(e.step, round(e.value, 3)) for e in events.Scalars("reward/mean")]
    assert rewards == [(step, step / 10) for step in range(1, 8)]
    assert [e.step for e in events.Scalars("a/nan")] == [1, 2, 3]
    assert math.isnan(events.Scalars("a/nan")[0].value)


# --- wandb -----------------------------------------------------------------------------------


def test_wandb_offline_goes_on_in_the_same_run(tmp_path, monkeypatch) -> None:
    # Importing it makes directories that last as long as this process.
    monkeypatch.setattr(tempfile, "tempdir", os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    import wandb

    options = {"mode": "offline", "project": "sums", "group": "g", "tags": ("a", "b")}
    log_steps(build(rlax_wandb, tmp_path, **options), range(1, 6), **{"a/nan": NAN})
    # Killed, and continued behind step 3; what W&B wrote of the first process counts for nothing.
    records = [{"step": step, "reward/mean": step / 10} for step in range(1, 4)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "metrics.jsonl").write_text(lines + '{"step": 4, "reward/mean": 9}\n{"ste')
    log_steps(build(rlax_wandb, tmp_path, **options), range(4, 11), **{"a/inf": INFINITY})
    wandb.teardown()  # as at the end of a process: waits for wandb's own process to write all

    first, second = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))  # by time
    records = [list(wandb_records(path)) for path in (first, second)]
    runs = [next(r.run for r in found if r.HasField("run")) for found in records]
    assert runs[0].run_id == runs[1].run_id != ""
    assert {(r.project, r.run_group, r.display_name) for r in runs} == {
        ("sums", "g", tmp_path.name)
    }
    assert list(runs[0].tags) == ["a", "b"]
    config = {u.key: json.loads(u.value_json) for u in runs[0].config.update}
    assert config["steps"] == 10 and config["rlax"]["rollouts"]["group_size"] == 4

    rows = [history(path) for path in (first, second)]
    assert [[row["_step"] for row in found] for found in rows] == [
        [1, 2, 3, 4, 5],
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    ]
    assert [row["reward/mean"] for row in rows[1]] == [step / 10 for step in range(1, 11)]
    assert math.isnan(rows[0][0]["a/nan"]) and math.isinf(rows[1][3]["a/inf"])
    # Step 10 is the run's last one: only then is it finished.
    exits = [next(r.exit.exit_code for r in found if r.HasField("exit")) for found in records]
    assert exits == [1, 0]


def test_wandb_finds_the_records_of_a_run_whose_state_is_elsewhere(tmp_path, monkeypatch) -> None:
    import wandb

    logged: list[int] = []
    fake = types.SimpleNamespace(log=lambda metrics, step: logged.append(step))
    monkeypatch.setattr(wandb, "init", lambda **_: fake)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1, "a/b": 1}\n{"step": 2, "a/b": 2}\n')
    run = TrackedRun("run", tmp_path / "state", RunFiles(str(tmp_path / "run")), {}, 9)
    rlax_wandb.WandbRun(rlax_wandb.WandbConfig(mode="offline"), run).write(3, {})
    assert logged == [1, 2, 3]


# --- mlflow ----------------------------------------------------------------------------------


@functools.cache
def mlflow_client(run_dir: Path) -> Any:
    from mlflow.tracking import MlflowClient  # 8 s

    return MlflowClient(f"sqlite:///{run_dir}/mlflow.db")


def mlflow_run(run_dir: Path, experiment: str) -> Any:
    client = mlflow_client(run_dir)
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return run


def test_mlflow_goes_on_in_the_same_run_and_tells_if_it_is_lost(tmp_path: Path) -> None:
    options = {"experiment": "sums", "tags": {"who": "me"}}
    odd = {"a/nan": NAN, "a/inf": INFINITY, "a/p@8": 0.5}
    log_steps(build(rlax_mlflow, tmp_path, **options), range(1, 6), **odd)
    assert mlflow_run(tmp_path, "sums").info.status == "KILLED"  # it can be continued
    log_steps(build(rlax_mlflow, tmp_path, **options), range(4, 11))

    run, client = mlflow_run(tmp_path, "sums"), mlflow_client(tmp_path)
    assert (run.info.status, run.info.run_name) == ("FINISHED", tmp_path.name)
    assert run.data.tags["who"] == "me" and run.data.tags[rlax_mlflow.LAST_STEP] == "10"
    assert run.data.params["rlax.rollouts.group_size"] == "4"
    assert run.data.params["rlax.rewards"] == "[{'name': 'even'}]"
    assert not any("hunter2" in value for value in run.data.params.values())

    def column(name: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]

    assert sorted(column("reward/mean")) == [(step, step / 10) for step in range(1, 11)]
    assert all(math.isnan(value) for _, value in column("a/nan")) and len(column("a/nan")) == 5
    assert column("a/p_8")[0] == (1, 0.5)
    assert column("a/inf")[0] == (1, sys.float_info.max)  # MLflow's way to store infinity

    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        for table in ("tags", "latest_metrics", "metrics", "params", "runs"):
            database.execute(f"DELETE FROM {table}")
    tracker = build(rlax_mlflow, tmp_path, **options)
    tracker.close()
    with pytest.raises(RlaxError, match=r"tracker mlflow cannot be opened: .* not found"):
        tracker.log(11, {})
