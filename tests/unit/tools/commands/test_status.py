"""``rlax status``: the bottleneck in a sentence, and lines with the right numbers."""

import io
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.ending import forget_ending, record_ending
from rlax_plugin.base.liveness.marks import announced
from rlax_plugin.base.liveness.run_status import (
    SILENT,
    ControllerStatus,
    Doing,
    LossStatus,
    RunStatus,
    WorkerStatus,
)
from rlax_plugin.run.start.holder import record_holder
from rlax_plugin.tools.commands.status import source as source_module
from rlax_plugin.tools.commands.status.bottleneck import bottleneck
from rlax_plugin.tools.commands.status.command import to_json
from rlax_plugin.tools.commands.status.place import place_of, read_plain
from rlax_plugin.tools.commands.status.show import lines_of, rendered
from rlax_plugin.tools.commands.status.source import Seen, seen_here


def worker(name: str = "w", **changes: Any) -> WorkerStatus:
    values = {
        "name": name,
        "version": 3,
        "samples": 8,
        "slots": 8,
        "tokens_per_s": 1234.5,
        "silent_s": 0.25,
        "clock_s": 0.0,
        "state": "generates",
    }
    return WorkerStatus(**values | changes)


def status(wait: float = 0.5, publish: float = 0.0, **changes: Any) -> RunStatus:
    shares = {"wait": wait, "train": 1 - wait - publish, "publish": publish, "other": 0.0}
    values: dict[str, Any] = {
        "seen": 1000.0,
        "step": 12,
        "steps": 20,
        "version": 11,
        "step_s": 2.5,
        "left_s": 3725.0,
        "shares": shares,
        "max_staleness": 3,
        "workers": (worker("a"), worker("b")),
        "slots_used": 0.9,
        "reward_processes": 2,
        "rewards_used": 0.1,
    }
    return RunStatus(at=1000.0, pid=7, every_s=1.0, controller=ControllerStatus(**values | changes))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        # 2 workers give a step's samples in the whole step; without the wait it has half the time.
        (status(0.5), "waits 50% of the step for samples: 2 more workers would balance"),
        (status(0.71, workers=(worker(),)), "waits 71% of the step for samples: 3 more workers"),
        (status(0.5, reward_error="rlax.rewards.0 (x): boom"), "rewards fail, such as: rlax.rew"),
        (
            status(0.5, max_staleness=1, workers=(worker("a", speed=0.1), worker("b", speed=0.5))),
            "for samples; worker a decodes at 10% of the median worker's speed, because",
        ),
        (status(0.5, workers=()), "waits 50% of the step for samples: no worker has weights"),
        (status(0.5, workers=(worker(version=-1),)), "no worker has weights"),
        (status(0.5, slots_used=0.2), "although only 20% of the workers' slots are in use"),
        (status(0.5, slots_used=0.2, rewards_used=0.95), "the 2 reward processes are busy for 95%"),
        (status(0.5, max_staleness=1), "because rlax.staleness.max_staleness is 1"),
        (
            status(0.5, max_staleness=1, workers=(worker("colocated"),)),
            "because training and generation take turns on the same devices",
        ),
        (
            status(0.5, max_staleness=1, workers=(worker("colocated"), worker("b"))),
            "because rlax.staleness.max_staleness is 1",
        ),
        (status(0.05), "the trainer is busy for 95% of the step and is the bottleneck"),
        (status(0.05, publish=0.4), "publishing weights holds the trainer up for 40% of the step"),
        (status(shares={}), "no step is finished yet"),
    ],
)
def test_the_bottleneck_is_named(found: RunStatus, said: str) -> None:
    assert said in bottleneck(found)


def loss(at: float) -> LossStatus:
    return LossStatus(name="far", reason="no heartbeat for 3 s", at=at, count=1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"step_at": 970.0}, "as no step has ended for 30 s, and one usually takes 2.5 s"),
        ({"losses": (loss(999.0),)}, "as worker far was lost, and no step has ended since"),
        ({"workers": (worker("a", state=SILENT),)}, "as worker a is silent"),
    ],
)
def test_nothing_is_advised_until_a_step_has_ended_since(changes: dict[str, Any], why: str) -> None:
    advice = "2 more workers would balance"
    fine = {"step_at": 998.0, "losses": (loss(997.0),)}  # a step has ended since
    assert bottleneck(status(0.5, **fine)).endswith(advice)
    said = bottleneck(status(0.5, **fine | changes))
    assert said == f"unknown, {why}; rlax doctor says more"
    frozen = Seen(status(0.5), "the trainer (pid 7) is stopped", stands=True)
    assert not any(line.startswith("bottleneck") for line in lines_of(frozen, now=1000.0))
    assert json.loads(to_json(frozen))["bottleneck"] == ""


def test_lost_and_frozen_workers_are_listed() -> None:
    gone = LossStatus(
        name="far", reason="no heartbeat for 3 s", at=992.0, count=1, away=True, silent_s=8.0
    )
    seen = Seen(status(0.5, workers=(worker("a"), worker("b")), losses=(gone,)))
    console = Console(file=io.StringIO(), width=120)
    console.print(rendered(replace(seen, frozen=frozenset({"b", "far"}))))
    *_, a, b, far = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert a.split()[:2] == ["a", "generates"] and b.split()[:2] == ["b", "frozen"]
    assert far.startswith("far     lost: no heartbeat for 3 s, frozen") and "8.0 s ago" in far


def test_the_workers_of_a_killed_run_are_gone_unless_their_processes_live() -> None:
    ended = Seen(status(), "killed", "killed", living=frozenset({"b"}), marked=frozenset({"b"}))
    console = Console(file=io.StringIO(), width=120)
    console.print(rendered(ended))
    *_, a, b = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert " ".join(a.split()) == "a not seen from here - - - -"
    assert b.startswith("b       generates, without a trainer")
    console.print(rendered(replace(ended, marked=frozenset({"a", "b"}))))
    *_, a, _ = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert " ".join(a.split()) == "a gone - - - -"


def test_lines_have_the_numbers() -> None:
    found = status(0.5, staleness_max=2.0, max_staleness=3, reward_s=0.0125, batch="3 of 8 groups")
    doing = Doing(what="training step 13", since=970.0)
    found = found.model_copy(update={"trainer": doing})
    lines = lines_of(Seen(found), now=1000.0)
    assert lines[0] == "trainer: training step 13, since 30 s"
    assert lines[1] == "step 12/20  a step 2.5 s  left 1:02:05  tokens/s -  version 11"
    assert "batch 3 of 8 groups" in lines[2] and "staleness 2 of 3" in lines[2]
    assert "reward of a group 12.5 ms" in lines[2]
    assert lines[3] == "time of a step: wait 50%  train 50%  publish 0%  other 0%"
    ended = lines_of(Seen(found, "the process of the trainer was killed", "killed"), now=1000.0)
    assert ended[0] == "the process of the trainer was killed"
    assert ended[1] == "step 12/20  a step 2.5 s  tokens/s -  version 11"  # nothing is left
    assert not any(line.startswith(("trainer:", "bottleneck")) for line in ended)
    other_clock = lines_of(Seen(found, ahead_s=-20.0), now=1020.0)
    assert other_clock[0] == lines[0]
    document = json.loads(to_json(Seen(found)))
    assert document["status"]["controller"]["step"] == 12 and document["ended"] is False


def test_an_old_status_is_not_taken_for_the_present_one(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)

    def put(found: RunStatus, age_s: float = 0.0) -> None:
        own = found.model_copy(update={"pid": os.getpid()})
        files.put("status.json", own.model_dump_json().encode())
        at = time.time() - age_s
        os.utime(tmp_path / "status.json", (at, at))

    assert seen_here(tmp_path).outcome == "unknown"
    put(status())
    assert not seen_here(tmp_path).ended  # its process is in another container, say
    record_ending(tmp_path, None)
    assert seen_here(tmp_path).outcome == "interrupted"
    forget_ending(tmp_path)
    files.delete("status.json")
    with announced(tmp_path, "trainer"):
        assert seen_here(tmp_path).problem == "the run has just started"
        files.put("status.json", status().model_dump_json().encode())
        assert seen_here(tmp_path).problem == "the run has just started"  # another one's status
        put(status(), age_s=60.0)
        assert seen_here(tmp_path).problem == "the trainer has written no status for 60 s"
        put(status().model_copy(update={"at": 4e9}))
        problem = seen_here(tmp_path).problem
        assert "the event loop of the controller has not answered for 3999999000 s" in problem
        for ahead_s in (90.0, -90.0):  # a status of a clock that differs is not old
            at = time.time() + ahead_s
            put(status(seen=at).model_copy(update={"at": at}))
            seen = seen_here(tmp_path)
            assert seen.problem == "" and abs(seen.ahead_s - ahead_s) < 5
        put(status(), age_s=-60.0)  # nobody has written it since the clock was set back
        problem = seen_here(tmp_path).problem
        assert problem.startswith("the time of the last status lies in the future, ")
    put(status(), age_s=60.0)
    assert seen_here(tmp_path).ended


def test_a_process_without_a_mark_starts_ends_or_is_of_an_earlier_version(tmp_path: Path) -> None:
    """The lock of the run names it at each of these times."""
    with (tmp_path / ".lock").open("w") as lock:
        record_holder(lock)
    RunFiles(tmp_path).put("status.json", status().model_dump_json().encode())
    os.utime(tmp_path / "status.json", (1000, 1000))
    began = psutil.Process().create_time()

    def problem() -> str:
        seen = seen_here(tmp_path)
        assert not seen.ended and seen.goes_on
        return seen.problem

    record_ending(tmp_path, RlaxError("no groups"))
    assert problem().startswith(f"the run is ending: its process (pid {os.getpid()})")
    os.utime(tmp_path / "ended.json", (began - 9, began - 9))  # of an earlier process
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "_STARTS_S", time.time() - began + 60)
        assert problem() == "the run has just started"
        patch.setattr(source_module, "_STARTS_S", 0.0)
        assert problem().startswith("the trainer writes no status: it is of an earlier version")


def test_the_end_of_a_run_is_said(tmp_path: Path) -> None:
    """The record of its process, ``summary.json`` and the log decide, in this order."""
    (tmp_path / "logs").mkdir()
    files = RunFiles(tmp_path)

    def end() -> tuple[str, str]:
        seen = seen_here(tmp_path)
        return seen.outcome, seen.problem

    before = "the run ended before its last step"
    assert end() == ("unknown", f"{before}, and has not recorded why")
    log = "at 1 ERROR absl theirs\nat 2 ERROR rlax.run the run fails: a\x1b\nat 3 INFO rlax.x y\n"
    (tmp_path / "logs/trainer.log").write_text(log)
    assert end()[1].endswith(
        "; the last error in logs/trainer.log is: at 2 ERROR rlax.run the run fails: a\\x1b"
    )
    record_ending(tmp_path, RlaxError("no groups\nat all"))
    assert end() == ("failed", f"{before}: no groups at all")
    record_ending(tmp_path, OSError(28, "No space left on device"))
    assert end()[1].startswith(f"{before}: a disk is full ([Errno 28] No space left on device): ")
    record_ending(tmp_path, OSError(5, "Input/output error"))
    assert end()[1] == f"{before}: OSError: [Errno 5] Input/output error"
    for interrupted in (None, KeyboardInterrupt()):
        record_ending(tmp_path, interrupted)
        assert end() == ("interrupted", "the run was interrupted before its last step")
    files.put_json("summary.json", {"complete": False})
    assert end()[0] == "interrupted"
    files.put_json("summary.json", {"complete": True})
    complete = ("complete", "the process of the trainer has ended: the run is complete")
    assert end() == complete
    forget_ending(tmp_path)
    assert end() == complete
    record_ending(tmp_path, RlaxError("x"))
    assert end() == ("failed", "the run ended after its last step: x")
    files.put("ended.json", b"[")
    files.put("summary.json", b"{")
    assert end()[0] == "unknown" and end()[1].endswith("summary.json is damaged")


@pytest.mark.parametrize("name", ["config.yml", "summary.json"])
def test_a_pipe_or_a_link_in_the_place_of_a_file_is_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(RlaxError, match=rf"{name} cannot be read: it is no ordinary file"):
        on_daemon(lambda: read_plain(RunFiles(tmp_path), name), "reader").result(60)
    (tmp_path / name).unlink()
    (tmp_path / "other").write_text("rlax: {}")
    (tmp_path / name).symlink_to(tmp_path / "other")
    with pytest.raises(RlaxError, match=rf"{name} cannot be read: it is a link"):
        read_plain(RunFiles(tmp_path), name)


def test_a_run_is_found_although_its_config_cannot_be_read(tmp_path: Path) -> None:
    config, state_dir = tmp_path / "config.yml", tmp_path / "state"
    config.write_text("steps: [")
    with pytest.raises(ConfigError, match=r"config\.yml"):  # nothing says that it is a run
        place_of(str(tmp_path))
    (tmp_path / "status.json").touch()
    place = place_of(str(tmp_path))
    assert (place.state_dir, place.section) == (tmp_path, None) and "config.yml" in place.problem
    (state_dir / "logs").mkdir(parents=True)
    config.write_text(f"rlax: {{state_dir: {state_dir}, of_another_version: 3}}")
    place = place_of(str(tmp_path))
    assert (place.state_dir, place.section) == (state_dir, None)
    config.unlink()
    os.mkfifo(config)
    assert on_daemon(lambda: place_of(str(tmp_path)), "reader").result(60).state_dir == tmp_path
