"""Which rows of a batch each host holds, and arrays made of them."""

import jax
import numpy as np

from maxtext_overrides.trainer.host_rows import HostRows


class Device:
    """A device of a host (fake)."""

    def __init__(self, host):
        self.process_index = host


class Sharding:
    """A sharding of rows over devices (fake): device -> its rows, and all positions."""

    def __init__(self, *rows_of_devices):
        self._found = rows_of_devices

    def devices_indices_map(self, shape):
        rows, length = shape
        return {
            device_: (slice(start * rows // 8, stop * rows // 8), slice(0, length))
            for device_, start, stop in self._found
        }


def test_rows_follow_the_devices():
    halves = Sharding((Device(0), 0, 2), (Device(0), 2, 4), (Device(1), 4, 6), (Device(1), 6, 8))
    rows = HostRows(halves)
    assert rows.held(0, (16, 4)).tolist() == list(range(8))
    assert rows.held(1, (16, 4)).tolist() == list(range(8, 16))
    alternating = Sharding((Device(0), 0, 2), (Device(1), 2, 4), (Device(0), 4, 6))
    assert HostRows(alternating).held(0, (8, 4)).tolist() == [0, 1, 4, 5]
    repeated = Sharding((Device(0), 0, 8), (Device(1), 0, 8))
    assert HostRows(repeated).held(1, (4, 4)).tolist() == [0, 1, 2, 3]


def test_a_share_has_the_rows_of_one_host_alone():
    rows = HostRows(Sharding((Device(0), 0, 2), (Device(1), 2, 8)))
    arrays = {"a": np.arange(8)[:, None], "b": np.arange(32).reshape(8, 1, 4)}
    assert rows.share(0, arrays)["a"].tolist() == [[0], [1]]
    assert rows.share(1, arrays)["b"].tolist() == arrays["b"][2:].tolist()
    shares = [rows.share(host, arrays)["b"] for host in (0, 1)]
    assert sum(share.nbytes for share in shares) == arrays["b"].nbytes


def test_placed_rows_are_the_batch():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    rows = HostRows(sharding)
    arrays = {
        "a": np.arange(12, dtype=np.int32).reshape(6, 2),
        "b": np.arange(24.0, dtype="f4").reshape(6, 2, 2),
    }
    placed = rows.placed(rows.share(0, arrays), 6)
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(placed[name]), array)
        assert placed[name].sharding == sharding
