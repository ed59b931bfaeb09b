"""Headers of GGUF and safetensors files that lie: one message with the tensor's name, no memory."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as Value

from maxtext_overrides.models.gguf_file import GgufFile
from maxtext_overrides.models.safetensors_directory import SafetensorsDirectory
from rlax_plugin.base.errors import ConfigError

Tensor = tuple[str, tuple[int, ...], int, int]
FAR = 1 << 62
MOST_BYTES = 4 << 20  # that a refusal may allocate


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def value(key: str, kind: int, content: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + content


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + content


def gguf(*tensors: Tensor, values: tuple[bytes, ...] = (), data: int = 64) -> bytes:
    """A file with these tensors: (name, shape, type, offset)."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    for name, shape, kind, offset in tensors:
        header += text(name) + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack(
            "<IQ", kind, offset
        )
    return header + bytes(-len(header) % 32 + data)


def nested(depth: int) -> bytes:
    return value("general.tags", Value.ARRAY, array(Value.ARRAY, 1) * depth + array(Value.UINT8, 0))


ONE: Tensor = ("one", (8,), Kind.F32, 0)
NUMBERS = value("alphabet", Value.ARRAY, array(Value.UINT8, FAR))
TEXT = value("poem", Value.STRING, struct.pack("<Q", FAR))
GGUF: dict[str, tuple[bytes, str]] = {
    "nested arrays": (gguf(values=(nested(100_000),)), "general.tags is an array of arrays"),
    "overlap": (gguf(ONE, ("two", (8,), Kind.F32, 16)), "two begins at byte 16 .*, expected 32"),
    "larger than the file": (
        gguf(("one", (1 << 40, 256), Kind.Q8_0, 0)),
        "the tensor one, of .* end",
    ),
    "product of 2**64": (
        gguf(("one", (1 << 32, 1 << 32), Kind.F32, 0)),
        "the tensor one, of .* end",
    ),
    "empty": (gguf(("one", (0, 8), Kind.F32, 0)), r"the tensor one is empty: .*\[0, 8\]"),
    "twice": (gguf(ONE, ("one", (8,), Kind.F32, 32)), "it has the tensor one twice"),
    "one under two names": (
        gguf(("blk.0.ffn_up.bias", (8,), Kind.F32, 0), ("blk.00.ffn_up.bias", (8,), Kind.F32, 32)),
        r"blk.0.ffn_up.bias and blk.00.ffn_up.bias are both one",
    ),
    "axes": (gguf(("one", (1,) * 5, Kind.F32, 0)), "the tensor one has 5 axes"),
    "blocks": (gguf(("one", (8,), Kind.Q8_0, 0)), "one has rows of 8 numbers, and Q8_0 .* of 32"),
    "type": (gguf(("one", (8,), 99, 0)), "the tensor one has the unknown type 99"),
    "type of a value": (gguf(values=(value("poem", 77, b""),)), "poem has the unknown type 77"),
    "a value twice": (gguf(values=(value("a", Value.BOOL, b"\1"),) * 2), "it has a twice"),
    "long array": (gguf(values=(NUMBERS,)), "it ends too early"),
    "long text": (gguf(values=(TEXT,)), "it ends too early"),
    "alignment": (
        gguf(ONE, values=(value("general.alignment", Value.UINT32, struct.pack("<I", 3)),)),
        "general.alignment must be a power of two, not 3",
    ),
    "endless": (b"GGUF" + struct.pack("<IQQ", 3, FAR, 0), f"announces {FAR} tensors"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian order.* not supported"),
    "version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 of the format"),
}


# What the library refuses, and how.
SAFETENSORS: dict[str, bytes] = {
    "contradiction": struct.pack("<Q", 58)
    + b'{"one":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}  '
    + bytes(8),
    "long header": struct.pack("<Q", 1 << 60) + b"{}",
    "no object": struct.pack("<Q", 2) + b"[]",
    "deep": struct.pack("<Q", 90_000) + b"[" * 90_000,
}


def refused(read: Callable[[Path], object], path: Path, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=message) as caught:
            read(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "message"), GGUF.values(), ids=GGUF)
def test_a_gguf_header_that_lies(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refused(GgufFile, path, message)


def test_a_right_gguf_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(
        gguf(ONE, ("two", (2, 4), Kind.F32, 32), values=(value("a", Value.BOOL, b"\1"),))
    )
    file = GgufFile(path)
    assert dict(file.shapes) == {"one": (8,), "two": (2, 4)} and file.value("a") is True


@pytest.mark.parametrize("content", SAFETENSORS.values(), ids=SAFETENSORS)
def test_a_safetensors_header_that_lies(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(SafetensorsDirectory, tmp_path, "is truncated or no file of safetensors: ")
