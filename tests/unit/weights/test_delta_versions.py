"""Versions written as changes: who reads what, and what stays on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sparse_updates import SparseTrainer, holds
from two_parts import NotingStore

from rlax_plugin.errors import WeightsError, WeightsMismatchError
from rlax_plugin.ports.training import NewWeights
from rlax_plugin.testing import FakeEngine
from rlax_plugin.types import DeltaSize, VersionPart, WeightVersion
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.leased_versions import VersionTable
from rlax_plugin.weights.memory_copies import MemoryCopies
from rlax_plugin.weights.taking import Reading, take_version
from rlax_plugin.weights.verification import check_fingerprints, read_weights
from rlax_plugin.weights.version_index import versions_from_json, versions_to_json


@pytest.fixture
def store() -> NotingStore:
    return NotingStore()


@pytest.fixture
def make(
    loop: asyncio.AbstractEventLoop, tmp_path: Path, store: NotingStore
) -> Iterator[Callable[..., SparseTrainer]]:
    """Makes trainers of one run, whose threads end with the test."""
    made: list[SparseTrainer] = []

    def make(full_every: int = 3) -> SparseTrainer:
        made.append(SparseTrainer(loop, tmp_path / "weights", store, full_every=full_every))
        return made[-1]

    yield make
    for one in made:
        one.publisher.close()


@pytest.fixture
def trainer(make: Callable[..., SparseTrainer]) -> SparseTrainer:
    return make()


def take(engine: FakeEngine, version: WeightVersion, reading: Reading | None = None) -> None:
    asyncio.run(take_version(engine, version, reading=reading))


def kinds(version: WeightVersion) -> list[str]:
    return [part.name for part in version.parts]


def test_every_third_version_is_written_in_full(trainer: SparseTrainer, store: NotingStore) -> None:
    versions = [trainer.publish() for _ in range(5)]
    full, changed = ["base"], ["base", "base_1"]
    assert [kinds(v) for v in versions] == [full, changed, [*changed, "base_2"], full, changed]
    assert len(store.saved) == 5 and len(set(store.saved)) == 5
    assert versions[2].paths[:2] == versions[1].paths
    assert versions[2].parts[0] is versions[0].parts[0]
    # Fingerprints are sent of the first and of the last state.
    assert [len(part.tensors) for part in versions[2].parts] == [3, 0, 3]
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


def test_a_copy_in_memory_counts_as_the_version_that_it_is_a_copy_of(trainer, store) -> None:
    trainer.publish()
    second, copies = trainer.publish(), MemoryCopies(1 << 20)
    changes, memory = second.parts[-1], copies.add(trainer.weights[-1])
    copy = VersionPart("base", changes.path, changes.tensors, memory=memory)
    engine = FakeEngine(store)
    take(engine, replace(second, parts=(copy,)))
    assert store.loaded == [] and holds(engine, trainer.weights[1])
    third = trainer.publish()
    take(engine, third)
    assert store.loaded == [third.paths[2]] and holds(engine, trainer.weights[2])
    copies.close()


def test_changes_of_one_part_stay_while_another_one_changes(make, store) -> None:
    made = make()
    table, other = {"w": np.zeros((40, 5), np.float32)}, {"v": np.arange(3, dtype=np.float32)}
    other_table = {"w": table["w"] - 0.0}
    other_table["w"][3] = -1
    for step, parts in enumerate(
        [
            {"base": table, "adapter": other},
            {"base": other_table, "adapter": None},
            {"base": None, "adapter": {"v": other["v"] + 1}},
        ]
    ):
        made.publisher.publish(NewWeights(step, parts))
        made.publisher.wait()
    first, second, third = made.versions
    assert kinds(third) == ["base", "base_1", "adapter"]
    like = table | other
    loaded = read_weights(second, store, like, fingerprint=fingerprint_numpy)
    store.loaded.clear()
    after = read_weights(third, store, like, fingerprint=fingerprint_numpy, held=loaded)
    assert store.loaded == [third.paths[2]] and after.held == {"base", "base_1"}
    assert after.read.keys() == after.fingerprints().keys() == {"v"}
    check_fingerprints(third, after.fingerprints(), after.held)
    assert after.arrays["w"] is loaded.arrays["w"] and after.nbytes == 12
    complete = read_weights(third, store, like, fingerprint=fingerprint_numpy)
    check_fingerprints(third, complete.fingerprints())
    assert complete.arrays["w"].tobytes() == other_table["w"].tobytes()
    assert complete.nbytes == table["w"].nbytes + second.parts[1].nbytes + 12
    assert first.parts[0] is second.parts[0]


def test_all_changes_together_take_at_most_half_of_the_weights(make, store) -> None:
    made = make(full_every=16)
    weights = {"w": np.zeros(1000, np.float32)}
    for step in range(9):
        weights = {"w": weights["w"].copy()}
        weights["w"][step * 100 : step * 100 + 80] = step + 1
        made.publisher.publish(NewWeights(step, {"base": weights}))
        made.publisher.wait()
    # Changes take 5 bytes an element, a little more than 400 a version; half of all bytes is 2,000.
    assert [len(version.parts) for version in made.versions] == [1, 2, 3, 4, 5, 1, 2, 3, 4]


def test_names_that_would_not_do_are_no_reason_to_fail(make, store) -> None:
    made = make()
    long = "a" * 32
    for step in range(2):
        one = {"w": np.zeros(99, np.float32)}
        one["w"][step] = 1
        parts = {"base": one, "base_1": {"v": one["w"]}, long: {"u": one["w"]}}
        made.publisher.publish(NewWeights(step, parts))
        made.publisher.wait()
    assert kinds(made.versions[1]) == ["base", "base_1", "base_1_1", long]


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


def test_the_first_version_of_a_process_is_complete(make, store) -> None:
    again = [make() for _ in range(2)]
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
    for size in (-1, 1 << 63):
        with pytest.raises(ValueError, match=f"an array of changes has {size} bytes"):
            DeltaSize(0, size)
