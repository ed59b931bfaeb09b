"""Versions that share a part: it is written, read and verified once, and stays while it is used."""

import asyncio
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_versions import scripted
from two_parts import (
    BASE,
    NotingStore,
    adapter,
    canary,
    expected_fingerprints,
    fingerprints,
    version_of,
)
from waiting import eventually
from weight_runs import LIMIT_S, Run

from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import WeightsError, WeightsMismatchError, WeightsUnreadableError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.ports.training import NewWeights
from rlax_plugin.weights import verification
from rlax_plugin.weights.kept_versions import kept_version, listed_versions
from rlax_plugin.weights.leased_versions import VersionTable
from rlax_plugin.weights.memory_copies import MemoryCopies
from rlax_plugin.weights.parameter_server import ParameterServer
from rlax_plugin.weights.publisher import Publisher, by_one_host
from rlax_plugin.weights.verification import Reading, take_version


class Announcer:
    def __init__(self) -> None:
        self.listed: list[str] = []

    async def writing(self, path: str) -> None:
        self.listed.append(path)

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        pass


class Trainer:
    """A process that publishes the policy in two parts, of which one changes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path, store: NotingStore):
        self.versions: list[WeightVersion] = []
        self.announcer = Announcer()
        self.publisher = Publisher(
            loop=loop,
            write=by_one_host(store),
            directory=str(directory),
            announcer=self.announcer,
            failures=Supervision(),
            deadline_s=LIMIT_S,
            on_published=self.versions.append,
        )

    def publish(self, step: int, base: Any = None) -> WeightVersion:
        weights = canary(step) if base is None else canary(step, base)
        self.publisher.publish(NewWeights(step, {"base": base, "adapter": adapter(step)}, weights))
        self.publisher.wait()
        return self.versions[-1]


@pytest.fixture
def store() -> NotingStore:
    return NotingStore()


@pytest.fixture
def trainer(loop: asyncio.AbstractEventLoop, tmp_path: Path, store: NotingStore) -> Trainer:
    return Trainer(loop, tmp_path / "weights", store)


@pytest.fixture
def computed(monkeypatch) -> list[list[str]]:
    """The names of variables whose fingerprints were compared, version by version."""
    found: list[list[str]] = []
    check = verification.check_fingerprints

    def noted(version: WeightVersion, prints: Any, held: Any = ()) -> None:
        found.append(sorted(prints))
        check(version, prints, held)

    monkeypatch.setattr("rlax_plugin.weights.verification.check_fingerprints", noted)
    return found


# --- writing ---------------------------------------------------------------------------------


def test_a_part_that_has_not_changed_is_not_written_again(trainer: Trainer, store) -> None:
    first, second = trainer.publish(0, BASE), trainer.publish(1)
    assert [part.name for part in second.parts] == ["base", "adapter"]
    assert second.parts[0] is first.parts[0] and second.parts[1].path != first.parts[1].path
    base, adapters = first.paths[0], [v.paths[1] for v in (first, second)]
    assert store.saved == trainer.announcer.listed == [base, *adapters]
    assert all(path.endswith("-adapter") for path in adapters) and "adapter" not in base
    for number, version in enumerate((first, second)):
        assert fingerprints(version) == expected_fingerprints(number)


def test_a_process_shares_no_part_with_versions_of_another_one(
    trainer: Trainer, loop, tmp_path: Path, store
) -> None:
    trainer.publish(0, BASE)
    again = Trainer(loop, tmp_path / "weights", store)
    message = "version 1: part base is not handed over, and the version before has none"
    with pytest.raises(WeightsError, match=message):
        again.publish(1)
    assert again.publish(1, BASE).paths[0] != trainer.versions[0].paths[0]


def test_a_part_may_change_again(trainer: Trainer, store) -> None:
    trainer.publish(0, BASE)
    other = {name: array + 1 for name, array in BASE.items()}
    versions = [trainer.publish(1), trainer.publish(2, other), trainer.publish(3)]
    assert len(store.saved) == 6
    assert versions[1].paths[0] == versions[2].paths[0] != versions[0].paths[0]


# --- reading ---------------------------------------------------------------------------------


def take(engine: Any, version: WeightVersion, reading: Reading | None = None) -> None:
    asyncio.run(take_version(engine, version, reading=reading))


def test_a_part_that_is_in_use_is_neither_read_nor_verified_again(
    trainer: Trainer, store, computed
) -> None:
    first, second = trainer.publish(0, BASE), trainer.publish(1)
    engine, reading = scripted(store), Reading()
    take(engine, first, reading)
    whole = sum(a.nbytes for a in BASE.values()) + adapter(0)["bias"].nbytes
    assert reading.size == whole
    take(engine, second, reading)
    assert store.loaded == [*first.paths, second.paths[1]]
    assert computed == [["bias", "scale", "table"], ["bias"]]
    assert engine.version == 1 and reading.size == adapter(1)["bias"].nbytes
    # Both parts are in use: the canary of both is what prefill gives.
    assert second.canary is not None
    scored = asyncio.run(engine.score(second.canary.tokens))
    np.testing.assert_array_equal(scored, second.canary.logprobs)


def test_a_copy_in_memory_counts_as_the_part_that_it_is_a_copy_of(trainer: Trainer, store) -> None:
    first = trainer.publish(0, BASE)
    base, changed = first.parts
    engine = scripted(store)
    with closing(MemoryCopies(1 << 20)) as copies:
        copied = replace(changed, memory=copies.add(adapter(0)))
        assert copied.memory is not None
        take(engine, replace(first, parts=(base, copied)))
    assert store.loaded == [base.path]
    take(engine, first)
    assert store.loaded == [base.path]


def test_wrong_parts_are_never_shared_with_the_next_version(trainer: Trainer, store) -> None:
    """Only what is in use is not read again, and only what was verified is ever in use."""
    first = trainer.publish(0, BASE)
    other = {name: array * np.float32(1.5) for name, array in BASE.items()}
    second = trainer.publish(1, other)
    third = trainer.publish(2)
    third = replace(third, canary=canary(2, other))
    engine = scripted(store)
    take(engine, first)
    wrong = replace(second, canary=canary(9))
    with pytest.raises(WeightsMismatchError, match="the canary's log-prob"):
        take(engine, wrong)
    assert engine.version == 0
    take(engine, third)
    assert store.loaded == [*first.paths, *second.paths, *third.paths]


@pytest.mark.parametrize("changed", ["fingerprint", "format"])
def test_a_wrong_part_is_found_beside_one_that_is_in_use(
    trainer: Trainer, store, changed: str
) -> None:
    first, second = trainer.publish(0, BASE), trainer.publish(1)
    engine = scripted(store)
    take(engine, first)
    part = second.parts[1]
    (name, spec), *_ = part.tensors.items()
    if changed == "fingerprint":
        part = replace(part, tensors={name: replace(spec, fingerprint=spec.fingerprint ^ 1)})
        error, message = WeightsMismatchError, "variable 'bias' has fingerprint"
    else:
        part = replace(part, format="hf")
        error, message = WeightsError, "part adapter has format hf, and the engine reads native"
    with pytest.raises(error, match=message):
        take(engine, replace(second, parts=(second.parts[0], part)))
    assert engine.version == 0
    take(engine, second)
    assert engine.version == 1


def test_a_damaged_shared_part_is_found_by_readers_that_do_not_have_it(
    trainer: Trainer, store
) -> None:
    first, second = trainer.publish(0, BASE), trainer.publish(1)
    holder = scripted(store)
    take(holder, first)
    file = Path(first.paths[0], "weights.npz")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    take(holder, second)
    joins = scripted(store)
    with pytest.raises(WeightsError, match=r"weights\.npz is damaged") as caught:
        take(joins, second)
    assert caught.type is WeightsError and joins.version == -1
    shutil.rmtree(first.paths[0])
    with pytest.raises(WeightsUnreadableError):
        take(joins, second)


# --- leases and deletion ---------------------------------------------------------------------


def test_a_path_is_deleted_once_no_version_has_it() -> None:
    table = VersionTable(keep=1, lease_s=10.0)
    assert table.publish(version_of(0, "/a", "/0")) == []
    lease = table.acquire(0, "a reader")
    assert table.publish(version_of(1, "/a", "/1")) == []
    assert table.publish(version_of(2, "/a", "/2")) == ["/1"]
    assert table.paths == {"/a", "/0", "/2"}
    assert table.publish(version_of(3, "/b", "/3")) == ["/2"]
    assert table.release(lease.id) == ["/a", "/0"]
    assert table.paths == {"/b", "/3"}


def test_a_restart_keeps_the_parts_of_void_versions_that_others_have() -> None:
    table = VersionTable(keep=3, lease_s=10.0)
    for number in (3, 4, 5):
        table.publish(version_of(number, "/a", f"/{number}"))
    assert table.publish(version_of(4, "/b", "/4-b"), restart=True) == ["/4", "/5"]
    assert table.publish(version_of(5, "/b", "/5-b")) == []
    assert table.publish(version_of(6, "/b", "/6-b")) == ["/a", "/3"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that has ended with version 2."""
    run = Run(tmp_path / "run", keep=1)

    async def first(server: ParameterServer) -> None:
        for number in range(3):
            await run.publish(server, number, "a", f"{number}", restart=number == 0)

    run.process(first)
    return run


def test_a_shared_part_outlives_the_version_that_it_was_written_for(run: Run) -> None:
    assert run.there() == ["2", "a"]
    assert [Path(path).name for path in kept_version(run.files, 2).paths] == ["a", "2"]


def test_a_resumed_run_serves_a_shared_part_and_deletes_it_in_the_end(run: Run) -> None:
    async def killed(server: ParameterServer) -> None:
        assert server.latest is not None and server.latest.version == 2
        path = str(run.weights / "2-b")
        await server.writing(path)
        Path(path).mkdir()  # and no version was ever made of it

    async def resumed(server: ParameterServer) -> None:
        await run.publish(server, 2, "b", "2-c", restart=True)
        await run.publish(server, 3, "b", "3-c")

    run.process(killed)
    run.process(resumed)
    assert run.there() == ["3-c", "b"]


def test_what_a_void_version_shares_with_another_one_is_not_listed_for_deletion(run: Run) -> None:
    async def crashes(server: ParameterServer) -> None:
        await run.publish(server, 3, "a", "3")
        await run.publish(server, 3, "b", "3-b", restart=True)  # as if another process did
        weights = str(run.weights)
        only = [f"{weights}/3"]  # not "a": version 2 has it; while it writes, also "b" and "3-b"
        await eventually(lambda: list(listed_versions(run.files, weights).retired) == only)
        server._closed = True  # killed: nothing more is deleted

    async def resumed(server: ParameterServer) -> None:
        await run.publish(server, 3, "c", "3-c", restart=True)
        await eventually(lambda: "3" not in run.there())
        assert {"a", "2"} <= set(run.there())  # a reader may have come before the restart

    run.process(crashes)
    run.process(resumed)
    assert run.there() == ["3-c", "c"]


def test_the_rest_of_a_version_that_has_lost_a_part_is_deleted(run: Run) -> None:
    shutil.rmtree(run.weights / "a")
    listed = listed_versions(run.files, str(run.weights))
    assert listed.versions == [] and str(run.weights / "2") in listed.retired
    with pytest.raises(WeightsUnreadableError, match=r"version 2 are gone: neither .*/a nor"):
        kept_version(run.files)

    async def resumed(server: ParameterServer) -> None:
        await run.publish(server, 0, "b", "0-b", restart=True)

    run.process(resumed)
    assert run.there() == ["0-b", "b"]


def test_all_parts_move_with_their_run(run: Run, tmp_path: Path) -> None:
    moved = Path(shutil.move(run.files.location(), tmp_path / "moved"))
    expected = (str(moved / "weights/a"), str(moved / "weights/2"))
    assert kept_version(RunFiles(moved)).paths == expected
    (listed,) = listed_versions(RunFiles(moved), str(moved / "weights")).versions
    assert listed.paths == expected
