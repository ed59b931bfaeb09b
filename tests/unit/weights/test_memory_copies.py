"""Copies of weights in memory: what another process reads, and what is no such copy."""

import fcntl
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlax_plugin.base.errors import WeightsUnreadableError
from rlax_plugin.base.types import MemoryCopy, TensorSpec
from rlax_plugin.weights import memory_copies
from rlax_plugin.weights.memory_copies import MemoryCopies, on_devices, read

pytestmark = pytest.mark.skipif(not memory_copies.this_machine(), reason="Linux only")

NAN = np.array([0x7FC0, 0xFFC1, 0x7F81, 0x8000, 0x0001, 0x0080], np.uint16)
"""bf16: NaNs with three payloads, -0.0, the smallest denormal and the smallest normal number."""
ARRAYS: dict[str, Any] = {
    "norm.scale": np.arange(5, dtype=np.float32),
    "odd": np.arange(9, dtype=np.int8).reshape(3, 3),
    "scalar": np.float64(2.5),
    "none": np.zeros((0, 4), np.float32),
    "bits": NAN.view(jnp.bfloat16.dtype),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}
MANY = 1 << 20


def tensors(arrays: dict[str, Any]) -> dict[str, TensorSpec]:
    return {n: TensorSpec(np.shape(a), str(np.dtype(a.dtype)), 0) for n, a in arrays.items()}


@pytest.fixture
def copies():
    made = MemoryCopies(MANY)
    yield made
    made.close()


def test_every_bit_of_every_kind_of_array_comes_back_and_cannot_be_changed(copies) -> None:
    copy = copies.add(ARRAYS)
    found = read(copy, tensors(ARRAYS))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype and found[name].shape == np.shape(array)
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes()
        assert not found[name].size or not found[name].flags.writeable
        assert not found[name].size or found[name].ctypes.data % 64 == 0
    assert found["bits"].view(np.uint16).tolist() == NAN.tolist()
    with pytest.raises(PermissionError):
        os.pwrite(copy.descriptor, b"x", 70)
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/self/fd/{copy.descriptor}", 0)


def test_a_copy_that_was_given_up_or_replaced_is_not_read(copies) -> None:
    first = copies.add({"w": np.zeros(4, np.float32)})
    wanted = {"w": TensorSpec((4,), "float32", 0)}
    second = copies.add({"w": np.ones(4, np.float32)})
    assert second.descriptor == first.descriptor  # the system gives the number again
    with pytest.raises(WeightsUnreadableError, match="is the copy of another version"):
        read(first, wanted)
    assert read(second, wanted)["w"].tolist() == [1.0] * 4
    mapped = read(second, wanted)["w"]
    copies.close()
    assert mapped.tolist() == [1.0] * 4 and not mapped.flags.writeable  # it was read before
    with pytest.raises(WeightsUnreadableError, match=r"/proc/\d+/fd/\d+ cannot be read: No such"):
        read(second, wanted)
    with pytest.raises(WeightsUnreadableError, match="cannot be read"):
        read(replace(second, pid=2**31 - 1), wanted)


@pytest.mark.parametrize("shape", [(5,), (3,), (2, 2, 64)])
def test_one_of_another_size_is_not_read(copies, shape) -> None:
    copy = copies.add({"w": np.zeros(4, np.float32)})
    with pytest.raises(WeightsUnreadableError, match="is no copy of this version: it has 80 bytes"):
        read(copy, {"w": TensorSpec(shape, "float32", 0)})


def test_what_is_no_sealed_memory_is_not_read_and_nobody_waits_for_it(tmp_path: Path) -> None:
    ordinary = tmp_path / "file"
    ordinary.write_bytes(bytes(80))
    os.mkfifo(fifo := tmp_path / "fifo")
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.pwrite(unsealed, bytes(80), 0)
    fcntl.fcntl(unsealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    opened = [unsealed, os.open(ordinary, os.O_RDONLY), os.open(fifo, os.O_RDWR), 0]
    for descriptor in opened[:3]:
        copy = MemoryCopy(os.getpid(), descriptor, bytes(16))
        with pytest.raises(WeightsUnreadableError, match=r"cannot be read|is no copy of weights"):
            read(copy, {"w": TensorSpec((4,), "float32", 0)})
        os.close(descriptor)


def descriptors() -> int:
    """Of copies: other threads of this process may open and close some."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += "memfd:rlax-weights" in os.readlink(path)
    return found


def test_what_is_too_large_or_on_another_host_has_no_copy(copies) -> None:
    class OnAnotherHost:
        nbytes, is_fully_addressable = 4, False

    before = descriptors()
    assert copies.add({"w": np.zeros(MANY // 4 + 1, np.float32)}) is None
    assert copies.add({"w": OnAnotherHost()}) is None
    assert descriptors() == before
    for _ in range(3):
        assert copies.add({"w": np.zeros(MANY // 4, np.float32)}) is not None
    assert descriptors() == before + 1


def test_without_memory_for_it_there_is_none(copies, monkeypatch) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    before = descriptors()
    assert copies.add({"w": np.zeros(4, np.float32)}) is None
    assert descriptors() == before


def test_arrays_go_to_the_devices_of_those_that_they_replace(copies) -> None:
    arrays = {"w": jnp.arange(12.0).reshape(3, 4), "host": np.arange(3)}
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {"w": jax.ShapeDtypeStruct((3, 4), jnp.float32, sharding=here), "host": np.zeros(3, int)}
    copy = copies.add(arrays)
    found = on_devices(read(copy, tensors(arrays)), like)
    copies.close()
    assert isinstance(found["w"], jax.Array) and found["w"].sharding == here
    np.testing.assert_array_equal(found["w"] * 2, np.arange(12.0).reshape(3, 4) * 2)
    assert isinstance(found["host"], np.ndarray) and found["host"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("wrong", [{"pid": 0}, {"descriptor": -2}, {"token": bytes(15)}])
def test_what_names_no_copy_is_rejected(wrong) -> None:
    with pytest.raises(ValueError, match="a copy of weights in memory is"):
        replace(MemoryCopy(1, 0, bytes(16)), **wrong)
