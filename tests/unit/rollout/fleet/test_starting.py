"""The workers that are starting, as the display describes them."""

import asyncio
from types import SimpleNamespace
from typing import Any

from dispatching import registration

from rlax_plugin.config import Deadlines
from rlax_plugin.rollout.fleet.fleet import Fleet, Starting
from rlax_plugin.rollout.fleet.fleet_service import FleetService
from rlax_plugin.rollout.fleet.package_versions import PackageVersions
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.security.callers import Callers
from rlax_plugin.rpc.security.certificate import new_identity
from rlax_plugin.rpc.security.secret import new_token

CERTIFICATE = new_identity().certificate


def worker(name: str, version: int = -1) -> Any:
    return SimpleNamespace(name=name, version=version)


def starting(**doing: str) -> Starting:
    found = Starting()
    for name, activity in doing.items():
        found.note(name, activity)
    return found


def test_each_worker_has_its_activity() -> None:
    none = starting()
    assert none.described([], 2) == "workers: 0 of 2 registered (2 starting)"
    some = starting(b="compiling", a="")
    assert some.described([], 3) == (
        "workers: 0 of 3 registered (a building the engine; b compiling; 1 starting)"
    )
    some.note("a", "importing")
    assert some.described([worker("b")], 2) == (
        "workers: 1 of 2 registered (a importing; b loading weights)"
    )
    assert none.described([worker("b")], 1, published=False) == (
        "workers: 1 of 1 registered (b waiting for weights)"
    )
    ready = [worker("a", 0), worker("b", 3)]
    assert none.described(ready, 2) == ""
    late = none.described([*ready, worker("late")], 2)
    assert late == "workers: 3 of 2 registered (late loading weights)"


def test_an_unknown_number_of_workers_is_not_counted_down() -> None:
    assert starting().described([], None) == "workers: 0 registered"
    assert starting().described([worker("a", 1)], None) == "workers: 1 registered"


def test_many_workers_are_counted() -> None:
    many = starting(**{f"w{number}": "compiling" for number in range(6)})
    assert many.described([], 6) == ("workers: 0 of 6 registered (w0, w1, w2 and 3 more compiling)")


def test_only_names_and_short_activities_are_kept() -> None:
    many = starting(**{"a\nb": "c", "": "c", "n" * 5000: "c", "x": "y\x1b[2J" + "z" * 5000})
    assert len(many) == 1
    said = many.described([], 1)
    assert "x y\\x1b[2Jzzz" in said and len(said) < 150
    for number in range(5000):
        many.note(f"w{number}", "")
    assert len(many) == 4096
    many.note("w0", "compiling")
    assert "w0 compiling" in many.described([], None)


def test_a_worker_that_requests_the_config_is_starting() -> None:
    async def main() -> str:
        fleet = Fleet(deadlines=Deadlines(), config_hash="", parameter_server="")
        service = FleetService(fleet, Callers())
        await service.Config(pb.ConfigRequest(), None)
        await service.Config(pb.ConfigRequest(worker="local-0"), None)
        await service.Config(pb.ConfigRequest(worker="local-0", doing="compiling"), None)
        return fleet.starting.described([], 1)

    assert asyncio.run(main()) == "workers: 0 of 1 registered (local-0 compiling)"


async def test_a_worker_that_was_rejected_is_not_said_to_build_its_engine() -> None:
    said: list[str] = []

    fleet = Fleet(deadlines=Deadlines(), config_hash="abc", parameter_server="", note=said.append)
    service = FleetService(fleet, Callers(), PackageVersions({"jax": "0.7.2"}))
    own = {"token": new_token(), "certificate": CERTIFICATE}
    rejected = (
        own | {"config_hash": "xyz"},
        {"token": "no secret"},
        own | {"versions": {"jax": "0.6.0"}},
    )
    for name, fields in zip("abc", rejected, strict=True):
        await service.Config(pb.ConfigRequest(worker=name), None)
        assert f"{name} building the engine" in fleet.starting.described([], None)
        for _ in range(2):  # its launcher starts it again
            assert not (await service.Register(registration(name, **fields), None)).accepted
        assert f"{name} building" not in fleet.starting.described([], None)
    assert [line.partition(":")[0] for line in said] == [
        "worker a was rejected",
        "worker b was rejected",
    ]
