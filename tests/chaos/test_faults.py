"""The faults of ``make chaos``: connections, a full disk, clocks, a store; and what they refuse."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

from chaos.blows import KINDS, Blow, Fault, Kind, blows
from chaos.faults import (
    ClockTrouble,
    DiskTrouble,
    NetworkTrouble,
    StoreTrouble,
)
from chaos.network import threaded
from chaos.supervised import SupervisedRun
from chaos.unreliable_store import switched
from rlax_plugin.errors import ConfigError
from rlax_plugin.records.faults import FaultPoint


def blow(fault: Fault, kind: Kind, choice: float = 0.0) -> Blow:
    return Blow(fault, kind, FaultPoint.STEP_TRAINED, 1, choice, 1.5)


def test_faults_have_kinds_of_their_own() -> None:
    found = blows(1, 400, ["network", "disk", "clock", "store", "node", "worker"])
    for fault, kinds in KINDS.items():
        assert {one.kind for one in found if one.target == fault} == set(kinds)
    assert {one.kind for one in found if one.target == "worker"} == {"kill", "freeze"}
    assert str(blow("disk", "full")) == "disk: full for 1.5 s at step-trained:1"


def test_the_network_fails_and_recovers() -> None:
    with threaded("127.0.0.1:1") as one, threaded("127.0.0.1:2") as other:
        trouble = NetworkTrouble({"to a": one, "to b": other})
        assert trouble.begin(blow("network", "stall")) == ""  # nothing is connected
        other.call(lambda proxy: proxy.change(stalled=True))  # it does not reach its target
        host, _, port = other.address.rpartition(":")
        with socket.create_connection((host, int(port))):
            wait_until(lambda: other.proxy.connections, "the connection")
            assert trouble.begin(blow("network", "delay", 0.9)) == "1 connections to b"
            assert other.proxy.conditions.delay_s == 0.2 and one.proxy.conditions.delay_s == 0
            trouble.end()
            assert other.proxy.conditions.delay_s == 0 and not other.proxy.conditions.stalled


def test_a_store_counts_as_hit_once_a_call_has_suffered(tmp_path: Path) -> None:
    switch, events = tmp_path / "store", tmp_path / "events"
    events.write_text("store-slowed\nstore-failed\nstore-hung\n")  # of an earlier blow
    trouble = StoreTrouble(switch, events)
    trouble.end()  # without a fault
    for kind, words, point in (
        ("slow", {"slow"}, "store-slowed"),
        ("faulty", {"faulty"}, "store-failed"),
        ("slow and faulty", {"slow", "faulty"}, "store-failed"),
        ("hang", {"writes-hang", "reads-hang"}, "store-hung"),
    ):
        assert trouble.begin(blow("store", kind)) == "" and switched(str(switch)) == words
        with events.open("a") as file:
            file.write("step-trained\n")
        assert trouble.begin(blow("store", kind)) == ""
        with events.open("a") as file:
            file.write(f"{point}\n")
        assert trouble.begin(blow("store", kind)) == "the weight store"
        trouble.end()
        assert not switch.exists()


def test_only_a_small_disk_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total")
    monkeypatch.setattr(psutil, "disk_usage", lambda path: usage(5 << 30))
    with pytest.raises(ConfigError, match=r"file system of 5 GiB, which --fault disk would fi"):
        DiskTrouble(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(psutil, "disk_usage", lambda path: usage(1 << 20))
    DiskTrouble(tmp_path).end()  # nothing was filled


def test_clocks_are_moved_and_durations_are_not(tmp_path: Path) -> None:
    try:
        trouble = ClockTrouble(tmp_path)
    except ConfigError as error:
        assert "pip install libfaketime" in str(error)
        pytest.skip("no libfaketime with which this Python can sleep")
    program = (
        "import sys, time\nfor _ in sys.stdin:\n print(time.time(), time.monotonic(), flush=True)"
    )
    environment = os.environ | trouble.environment("far worker")
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def differences() -> tuple[float, float]:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            shown, duration = map(float, process.stdout.readline().split())
            return shown - time.time(), duration - time.monotonic()

        assert abs(differences()[0]) < 30
        assert trouble.begin(blow("clock", "behind")) == "the clock of the far worker"
        # The library looks at its file once a second.
        wall_s, monotonic_s = wait_until(
            lambda: found if abs((found := differences())[0]) >= 30 else None, "a moved clock"
        )
        assert -120 < wall_s < -60 and abs(monotonic_s) < 30
        trouble.end()
        wait_until(lambda: abs(differences()[0]) < 30, "the right time")


def test_an_excused_end_is_repeated_and_has_to_say_why(tmp_path: Path) -> None:
    run = SupervisedRun(tmp_path, tmp_path)
    run.add("trainer", "audit", str(tmp_path / "none"))  # it ends with an error and its sentence
    run.start()
    part = run._parts["trainer"]
    assert part.process is not None and part.process.wait(280) in (1, 2)
    part.process.returncode = 1
    run.go_on()
    assert run.restarts == {"trainer": 0}  # nothing excuses it
    with part.log.open("a") as log:
        log.write("error: a disk is full ([Errno 28] No space left on device)\n")
    run.excused = True
    run.go_on()
    assert run.restarts == {"trainer": 1} and run.crashes == [] and not run.excused
    assert run.explained == ["error: a disk is full ([Errno 28] No space left on device)"]
    full = "error: a disk is full"
    for said in ("error: the weights differ", f"Traceback (most recent call last)\n{full}"):
        assert part.process.wait(280) in (1, 2)
        part.process.returncode, run.excused = 1, True
        with part.log.open("a") as log:
            log.write(f"{said}\n")
        run.go_on()
    why = "the trainer ended with an error, and did not say that a fault was the reason"
    assert run.crashes == [why, why]
    assert run.close(60) == []
