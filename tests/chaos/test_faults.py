"""The faults of ``make chaos``: connections and a store."""

import socket
from pathlib import Path

from waiting import wait_until

from chaos.blows import KINDS, Blow, Fault, Kind, blows
from chaos.faults import NetworkTrouble, StoreTrouble
from chaos.network import threaded
from chaos.unreliable_store import switched
from rlax_plugin.base.files.faults import FaultPoint


def blow(fault: Fault, kind: Kind, choice: float = 0.0) -> Blow:
    return Blow(fault, kind, FaultPoint.STEP_TRAINED, 1, choice, 1.5)


def test_faults_have_kinds_of_their_own() -> None:
    found = blows(1, 400, ["network", "store", "worker"])
    for fault, kinds in KINDS.items():
        assert {one.kind for one in found if one.target == fault} == set(kinds)
    assert {one.kind for one in found if one.target == "worker"} == {"kill", "freeze"}
    assert str(blow("network", "stall")) == "network: no byte passes for 1.5 s at step-trained:1"


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
