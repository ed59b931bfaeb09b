"""Versions in a format of which an engine is not the trainer's: who is given which parts."""

from dataclasses import replace
from pathlib import Path

import pytest
from weight_runs import Run, write

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.types import NATIVE, SAFETENSORS, TensorSpec, VersionPart, WeightVersion
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.capabilities import of_proto, to_proto
from rlax_plugin.weights.leased_versions import VersionTable
from rlax_plugin.weights.messages import version_from_proto, version_to_proto


def native(number: int, place: str = "/w") -> WeightVersion:
    part = VersionPart("base", f"{place}/{number}", {"w": TensorSpec((2,), "float32", 7)})
    return WeightVersion(number, number, (part,))


def converted(number: int, place: str = "/w") -> WeightVersion:
    tensors = {"model.w": TensorSpec((2,), "float32", 8)}
    path = f"{place}/{number}-huggingface"
    part = VersionPart("huggingface", path, tensors, SAFETENSORS)
    return replace(native(number, place), converted=(part,))


def table(keep: int = 2) -> VersionTable:
    return VersionTable(keep=keep, lease_s=10.0, clock=lambda: 0.0)


def test_a_converted_part_survives_messages() -> None:
    sent = converted(3)
    assert version_from_proto(version_to_proto(sent)) == sent


def test_a_reader_of_a_format_gets_its_parts_in_place_of_the_native_ones() -> None:
    version = converted(3)
    read = version.of_format(SAFETENSORS)
    assert read is not None
    assert (read.version, read.canary) == (3, version.canary)
    assert (read.parts, read.converted) == (version.converted, ())
    assert list(read.tensors) == ["model.w"]
    assert version.of_format(NATIVE) == native(3)
    assert native(3).of_format(SAFETENSORS) is None


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (VersionPart("hf", "/w/3", format=SAFETENSORS), "share a name or a path"),
        (VersionPart("base", "/w/other", format=SAFETENSORS), "share a name or a path"),
        (VersionPart("hf", "/w/other"), "a converted one is native"),
    ],
)
def test_converted_parts_that_cannot_be_are_rejected(part: VersionPart, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(native(3), converted=(part,))


def test_converted_parts_of_one_format_share_no_variable() -> None:
    (part,) = converted(3).converted
    second = replace(part, name="second", path="/w/second")
    with pytest.raises(ValueError, match="parts huggingface, second share variables"):
        replace(native(3), converted=(part, second))
    assert replace(native(3), converted=(part, replace(second, format="other"))).converted
    (base,) = native(3).parts
    same = replace(part, tensors=base.tensors)  # a format may have the trainer's names
    assert replace(native(3), converted=(same,)).of_format(SAFETENSORS).tensors == base.tensors


def test_a_version_without_the_format_cannot_be_leased_in_it() -> None:
    versions = table(keep=3)
    versions.publish(converted(1))
    versions.publish(native(2))
    assert versions.acquire(None, "it").read == native(2)
    assert versions.acquire(None, "it", weights_format=SAFETENSORS).read.version == 1
    with pytest.raises(WeightsError, match=r"version 2 in format safetensors; .*: 1"):
        versions.acquire(2, "it", weights_format=SAFETENSORS)


def test_the_newest_version_gains_parts_and_loses_none() -> None:
    versions = table()
    versions.publish(native(1))
    before = versions.acquire(None, "it")
    assert versions.publish(converted(1)) == []
    assert versions.publish(native(1)) == []  # again, by a publisher that lost the answer
    assert versions.versions == (converted(1),)
    assert versions.acquire(None, "it", weights_format=SAFETENSORS).read.version == 1
    versions.publish(native(2))
    assert versions.publish(native(3)) == []
    versions.release(before.id)
    assert versions.paths >= {"/w/1", "/w/1-huggingface"}  # the other one is leased yet


def test_converted_parts_are_deleted_with_their_version() -> None:
    versions = table(keep=1)
    versions.publish(converted(1))
    lease = versions.acquire(1, "it", weights_format=SAFETENSORS)
    assert versions.publish(converted(2)) == []
    assert versions.release(lease.id) == ["/w/1", "/w/1-huggingface"]
    assert versions.paths == {"/w/2", "/w/2-huggingface"}


def test_a_later_process_adopts_converted_parts_and_deletes_them(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=1)
    place = str(run.weights)

    async def first(server) -> None:
        for path in converted(1, place).all_paths:
            await server.writing(path)
            write(path)
        await server.publish(converted(1, place), True)

    async def second(server) -> None:
        assert server.latest == converted(1, place)
        await run.publish(server, 2, "2", restart=True)
        server._forget(server._table.forget_former_readers())

    run.process(first)
    run.process(second)
    assert run.there() == ["2"]


def test_capabilities_carry_a_known_format() -> None:
    assert of_proto(to_proto(Capabilities(slots=1))).weights_format == NATIVE
    has = Capabilities(slots=1, weights_format=SAFETENSORS)
    assert of_proto(to_proto(has)) == has
    message = to_proto(replace(has, weights_format="gguf\x1b"))
    with pytest.raises(ValueError, match=r"format 'gguf\\x1b', expected native or safetensors"):
        of_proto(message)
