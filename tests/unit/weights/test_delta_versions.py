"""Versions written as changes: who reads what, and what stays on the disk."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sparse_updates import SparseTrainer, holds
from two_parts import NotingStore

from rlax_plugin.errors import WeightsError, WeightsMismatchError
from rlax_plugin.testing import FakeEngine
from rlax_plugin.types import DeltaSize, VersionPart, WeightVersion
from rlax_plugin.weights.leased_versions import VersionTable
from rlax_plugin.weights.taking import Reading, take_version
from rlax_plugin.weights.version_index import versions_from_json, versions_to_json


@pytest.fixture
def store() -> NotingStore:
    return NotingStore()


@pytest.fixture
def trainer(loop: asyncio.AbstractEventLoop, tmp_path: Path, store: NotingStore) -> SparseTrainer:
    return SparseTrainer(loop, tmp_path / "weights", store)


def take(engine: FakeEngine, version: WeightVersion, reading: Reading | None = None) -> None:
    asyncio.run(take_version(engine, version, reading=reading))


def kinds(version: WeightVersion) -> list[str]:
    return [part.name for part in version.parts]


def test_every_third_version_is_written_in_full(trainer: SparseTrainer, store: NotingStore) -> None:
    versions = [trainer.publish() for _ in range(5)]
    full, changed = ["base"], ["base", "base_1"]
    assert [kinds(v) for v in versions] == [full, changed, [*changed, "base_2"], full, changed]
    assert len(store.saved) == 5 and len(set(store.saved)) == 5
    assert (
        versions[2].parts[:2] == versions[1].parts and versions[2].parts[0] is versions[0].parts[0]
    )
    sizes = [Path(path, "weights.npz").stat().st_size for path in store.saved]
    assert max(sizes[1], sizes[2], sizes[4]) < min(sizes[0], sizes[3]) / 10
    for version in versions:
        assert versions_from_json(versions_to_json([version]), "x")[0].parts == version.parts


def test_a_reader_of_every_version_reads_only_the_changes(trainer: SparseTrainer, store) -> None:
    engine = FakeEngine(store)
    for number in range(5):
        version = trainer.publish()
        take(engine, version)
        assert engine.version == number and holds(engine, trainer.weights[-1])
    assert store.loaded == store.saved


def test_a_reader_that_missed_versions_reads_what_it_lacks(trainer: SparseTrainer, store) -> None:
    versions = [trainer.publish() for _ in range(6)]
    engine = FakeEngine(store)
    take(engine, versions[0])
    take(engine, versions[2])  # without version 1
    assert holds(engine, trainer.weights[2])
    assert store.loaded == [*versions[0].paths, *versions[2].paths[1:]]
    store.loaded.clear()
    take(engine, versions[5])  # and without the full version 3
    assert holds(engine, trainer.weights[5]) and store.loaded == list(versions[5].paths)
    assert len(versions[5].paths) == 3
    late = FakeEngine(store)
    take(late, versions[5])
    assert holds(late, trainer.weights[5])


def test_an_older_version_is_not_made_of_a_newer_one(trainer: SparseTrainer, store) -> None:
    """A pinned worker goes back: the changes that it has used do not belong to that version."""
    versions = [trainer.publish() for _ in range(3)]
    engine = FakeEngine(store)
    take(engine, versions[2])
    store.loaded.clear()
    take(engine, versions[1])
    assert holds(engine, trainer.weights[1]) and store.loaded == list(versions[1].paths)


def test_changes_of_a_version_that_became_void_are_not_kept(trainer: SparseTrainer, store) -> None:
    versions = [trainer.publish() for _ in range(3)]
    engine = FakeEngine(store)
    take(engine, versions[1])
    other = replace(versions[2], parts=(versions[2].parts[0], versions[2].parts[2]))
    with pytest.raises(WeightsMismatchError, match="has fingerprint"):  # it lacks a change
        take(engine, other)
    assert engine.version == 1 and holds(engine, trainer.weights[1])
    assert store.loaded[-2:] == list(other.paths)


def test_the_same_weights_again_are_no_changes(trainer: SparseTrainer, store) -> None:
    first = trainer.publish()
    second = trainer.publish(trainer.weights[-1])
    assert second.parts[1].delta == DeltaSize(0, 0)
    engine = FakeEngine(store)
    take(engine, first)
    take(engine, second)
    assert engine.version == 1 and holds(engine, trainer.weights[-1])


def test_large_changes_and_other_shapes_are_written_in_full(trainer: SparseTrainer) -> None:
    trainer.publish()
    moved = {name: array + np.float32(0.5) for name, array in trainer.weights[-1].items()}
    assert kinds(trainer.publish(moved)) == ["base"]
    assert kinds(trainer.publish()) == ["base", "base_1"]
    wider = trainer.weights[-1] | {"more": np.zeros(3, np.float32)}
    assert kinds(trainer.publish(wider)) == ["base"]


def test_the_first_version_of_a_process_is_complete(loop, tmp_path: Path, store) -> None:
    again = [SparseTrainer(loop, tmp_path / "weights", store) for _ in range(2)]
    assert [kinds(one.publish()) for one in again] == [["base"], ["base"]]


@pytest.mark.parametrize("fault", ["bytes", "size", "fingerprint", "shape"])
def test_wrong_changes_are_found_and_the_weights_in_use_stay(
    trainer: SparseTrainer, store, fault: str
) -> None:
    first, second = trainer.publish(), trainer.publish()
    engine = FakeEngine(store)
    take(engine, first)
    base, part = second.parts
    assert part.delta is not None
    error: type[WeightsError] = WeightsError
    if fault == "bytes":
        file = Path(part.path, "weights.npz")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        message = "is damaged"
    elif fault == "size":
        part, message = replace(part, delta=DeltaSize(1 << 40, 1 << 40)), "bytes of gaps, of"
    elif fault == "fingerprint":
        spec = part.tensors["table"]
        wrong = replace(spec, fingerprint=spec.fingerprint ^ 1)
        part = replace(part, tensors={**part.tensors, "table": wrong})
        error, message = WeightsMismatchError, "variable 'table' has fingerprint"
    else:
        turned = {n: replace(s, shape=(*s.shape, 1)) for n, s in part.tensors.items()}
        with pytest.raises(ValueError, match="base_1 changes other variables than base has"):
            replace(second, parts=(base, replace(part, tensors=turned)))
        return
    with pytest.raises(error, match=message) as caught:
        take(engine, replace(second, parts=(base, part)))
    assert caught.type is error and engine.version == 0 and holds(engine, trainer.weights[0])


def test_files_stay_as_long_as_a_version_is_made_of_them(trainer: SparseTrainer) -> None:
    versions = [trainer.publish() for _ in range(7)]
    paths = [version.paths[-1] for version in versions]
    table = VersionTable(keep=1, lease_s=10.0)
    gone = [table.publish(version) for version in versions[:3]]
    lease = table.acquire(2, "a reader")
    gone += [table.publish(version) for version in versions[3:]]
    assert gone == [[], [], [], [], [], [], paths[3:6]]
    assert table.release(lease.id) == paths[:3]
    assert table.paths == {paths[6]}


def test_changes_come_after_what_they_change() -> None:
    whole = VersionPart("base", "/0")
    changes = VersionPart("base_1", "/1", format="delta", delta=DeltaSize(0, 0))
    with pytest.raises(ValueError, match="there is no part before it"):
        WeightVersion(1, 1, (changes, whole))
    with pytest.raises(ValueError, match="format native, and delta"):
        replace(changes, format="native")
    with pytest.raises(ValueError, match="format delta, and delta None"):
        replace(changes, delta=None)
    with pytest.raises(ValueError, match="take -1 and 0 bytes"):
        DeltaSize(-1, 0)
