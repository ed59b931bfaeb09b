"""The status of a run survives being written and read, and nothing else does."""

import json
import os
import time
from pathlib import Path

import pytest
from waiting import wait_until

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.liveness import activity as activity_module
from rlax_plugin.base.liveness import status_file
from rlax_plugin.base.liveness.activity import Activity, Failures, ends_at
from rlax_plugin.base.liveness.run_status import (
    ControllerStatus,
    Doing,
    RunStatus,
    WorkerStatus,
    finite,
    read_status,
    shown,
)
from rlax_plugin.base.liveness.status_file import StatusFile, last_status
from rlax_plugin.run.start.holder import LOCK, holder

WORKER = WorkerStatus(
    name="w",
    version=3,
    samples=5,
    slots=8,
    tokens_per_s=12.5,
    silent_s=0.25,
    clock_s=None,
    state="x",
)
STATUS = RunStatus(
    at=100.5,
    pid=7,
    every_s=1.0,
    controller=ControllerStatus(
        seen=100.25, step=2, steps=9, version=1, shares={"wait": 0.75}, workers=(WORKER,)
    ),
)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_file, "EVERY_S", 0.1)


def controller(**changes: object) -> dict[str, object]:
    assert STATUS.controller is not None
    return {"controller": STATUS.controller.model_dump() | changes}


def worker(**changes: object) -> dict[str, object]:
    return controller(workers=[WORKER.model_dump() | changes])


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert last_status(tmp_path) is None
    with StatusFile(tmp_path, lambda: STATUS):
        wait_until(lambda: (tmp_path / "status.json").exists(), "the file")
    assert last_status(tmp_path) == STATUS


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"at": "now"}, "at"),
        ({"pid": -1}, "pid"),
        ({"controller": {"seen": 1.0}}, "controller.step"),
        ({"phase": {"what": "x" * 301, "since": 1.0}}, "phase.what"),
        ({"every_s": 1e9}, "every_s"),  # it would make no status old
        ({"phase": {"what": "x", "since": float("nan")}}, "phase.since"),
        (controller(shares={"wait": 1e300}), "controller.shares.wait"),
        (worker(version=-2), "controller.workers.0.version"),
    ],
)
def test_anything_else_is_rejected_by_name(change: dict[str, object], named: str) -> None:
    document = json.loads(STATUS.model_dump_json()) | change
    with pytest.raises(RlaxError, match=rf"^here holds no status of a run: {named}: "):
        read_status(json.dumps(document).encode(), "here")
    with pytest.raises(RlaxError, match="here holds no status of a run"):
        read_status(b"{", "here")


def test_no_text_of_a_status_makes_a_line_of_its_own() -> None:
    forged = "ready\n1. forged\x1b[31m"
    document = json.loads(STATUS.model_dump_json()) | controller(batch=forged, shares={forged: 0.5})
    found = read_status(json.dumps(document).encode(), "here").controller
    assert found is not None
    assert found.batch == "ready\\n1. forged\\x1b[31m" and list(found.shares) == [found.batch]


@pytest.mark.parametrize("text", ["x" * 400, "\n" * 300, "x" * 299 + "\x1b"])
def test_a_long_text_is_cut_so_that_a_status_can_hold_it(text: str) -> None:
    one = STATUS.model_copy(update={"phase": Doing(what=shown(text), since=1.0)})
    assert read_status(one.model_dump_json().encode(), "here") == one


def test_a_figure_that_no_status_can_hold_is_unknown() -> None:
    assert [finite(one) for one in (2, 1e300, float("nan"), -float("inf"))] == [2.0] + [None] * 3


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a large file"])
def test_only_ordinary_files_are_read(tmp_path: Path, kind: str) -> None:
    for name in ("status.json", LOCK):
        path = tmp_path / name
        if kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a link":
            (tmp_path / "other").write_text(STATUS.model_dump_json())
            path.symlink_to(tmp_path / "other")
        else:
            path.touch()
            os.truncate(path, 1 << 34)  # takes no space on the disk
    with pytest.raises(RlaxError, match=r"status\.json cannot be read: it is "):
        on_daemon(lambda: last_status(tmp_path), "reader").result(60)
    assert on_daemon(lambda: holder(tmp_path), "reader").result(60) is None


def test_a_disk_that_cannot_be_written_is_said_once(tmp_path: Path, caplog) -> None:
    (tmp_path / "file").touch()
    attempts: list[int] = []
    with StatusFile(tmp_path / "file", lambda: attempts.append(1) or STATUS):
        wait_until(lambda: "the status cannot be written" in caplog.text, "the warning")
        said_at = len(attempts)
        wait_until(lambda: len(attempts) >= said_at + 3, "two further attempts, and a third begun")
    assert caplog.text.count("the status cannot be written") == 1


def test_a_directory_that_is_gone_is_said_once(tmp_path: Path, caplog) -> None:
    attempts, told = [], list[str]()
    gone = tmp_path / "gone"
    with StatusFile(gone, lambda: attempts.append(1) or STATUS, lambda: told.append("gone")):
        wait_until(lambda: len(attempts) >= 3, "two attempts, and a third begun")
    assert told == ["gone"] and not caplog.messages and not gone.exists()


def test_an_activity_says_what_and_since_when() -> None:
    activity, before = Activity(), time.time()
    assert activity.doing is None
    activity.begins("training\nstep 3", ends_at("rlax.deadlines.weights_s", 120))
    doing = activity.doing
    assert doing is not None and before <= doing.since <= time.time()
    assert "\n" not in doing.what
    assert doing.ends == "rlax.deadlines.weights_s = 120 s ends this wait"
    activity.ends()
    assert activity.doing is None


def test_failed_attempts_are_counted_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now_s = 500.0

        def monotonic(self) -> float:
            return self.now_s

        time = monotonic

    clock = Clock()
    monkeypatch.setattr(activity_module, "time", clock)
    failures = Failures()
    assert failures.recent is None
    failures.failed("writing\nversion 1")
    clock.now_s += 50.0
    failures.failed("writing version 2", times=2)
    recent = failures.recent
    assert recent is not None
    assert (recent.what, recent.at, recent.count) == ("writing version 2", 550.0, 3)
    clock.now_s += 20.0
    assert failures.count == 2
    clock.now_s += 41.0
    assert failures.recent is None
