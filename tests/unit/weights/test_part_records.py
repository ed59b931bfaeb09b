"""Parts of versions on the wire: nothing is lost, and nothing that cannot be."""

from typing import Any

import pytest

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.types import MOST_PARTS, TensorSpec, VersionPart, WeightVersion
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.weights.messages import version_from_proto, version_to_proto

TENSORS = {"w": TensorSpec((2, 3), "bfloat16", 7)}


def test_messages_keep_every_field_of_a_part() -> None:
    parts = (
        VersionPart("base", "/w/1", TENSORS),
        VersionPart("adapter", "/w/2", {"a": TensorSpec((), "float32", 8)}, format="hf"),
    )
    sent = WeightVersion(3, 3, parts)
    assert version_from_proto(version_to_proto(sent)) == sent


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "a version has 0 parts, not 1 to 128"),
        ([(f"a{n}", f"/{n}", "native") for n in range(MOST_PARTS + 1)], "129 parts, not 1 to 128"),
        ([("Base", "/1", "native")], "the name or format 'Base'"),
        ([("", "/1", "native")], "the name or format ''"),
        ([("a" * 33, "/1", "native")], "at most 32 letters a to z, digits"),
        ([("base", "/1", "\x1b[2J")], r"the name or format '\\x1b\[2J'"),
        ([("base", "/1", "native"), ("base", "/2", "native")], "base, base share a name or a path"),
        ([("base", "/1", "native"), ("adapter", "/1", "native")], "share a name or a path"),
        ([("base", "/" + "x" * 5000, "native")], "which is no path"),
    ],
)
def test_parts_that_cannot_be_are_rejected(parts: list[Any], message: str) -> None:
    made = [pb.Part(name=name, path=path, format=kind) for name, path, kind in parts]
    with pytest.raises(WeightsError, match=message):
        version_from_proto(pb.Version(version=1, step=1, parts=made))


def test_a_variable_belongs_to_one_part() -> None:
    parts = (VersionPart("base", "/1", TENSORS), VersionPart("adapter", "/2", TENSORS))
    with pytest.raises(ValueError, match="parts base, adapter share variables"):
        WeightVersion(1, 1, parts)
