"""Two processes with jax.distributed write one weight version together.

The steps by themselves are in test_shared_writing.py.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import writing_host
from orbax import checkpoint as ocp
from rlax_orbax.store import OrbaxStore
from runs import free_port
from waiting import wait_until

from rlax_plugin.weights.fingerprint import fingerprint_numpy

ANSWER_S = 120
WHOLE = writing_host.values()
# Shards of both hosts in chunks of at most 256 bytes.
CHUNKS = {
    "both.kernel": 16,  # 8 shards of 2 x 8 x 6 x 4 = 384 bytes
    "crossed": 8,
    "last_axis": 8 * 8,  # of 3 x 128 x 4 = 1536 bytes
    "within_a_host": 4,
    "replicated": 1,
    "mask": 2,
    "scalar": 1,
    "elsewhere": 1,
}


class Host:
    """One process; ``ask`` sends it a command."""

    def __init__(self, number: int, port: int, pool: ThreadPoolExecutor):
        self._pool = pool
        self.process = subprocess.Popen(
            [sys.executable, writing_host.__file__, str(number), str(port)],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = pool.submit(self._answer)

    def asks(self, *command: Any) -> Future[Any]:
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._pool.submit(self._answer)

    def ask(self, *command: Any) -> Any:
        return self.asks(*command).result(ANSWER_S)

    def _answer(self) -> Any:
        return json.loads(self.process.stdout.readline() or '"ended"')


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        hosts = [Host(number, port, pool) for number in (0, 1)]
        try:
            for host in hosts:
                assert host.ready.result(ANSWER_S) == "ready"
            yield hosts
        finally:
            for host in hosts:
                host.process.kill()
                host.process.wait(60)


def test_hosts_write_a_version_together(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        check_prints(hosts)
        check_here(hosts)
        check_version(hosts, tmp_path / "whole")
        check_killed_host(hosts, tmp_path / "killed")


def check_prints(hosts: list[Host]) -> None:
    """The fingerprints are those of the whole arrays, on every host."""
    shared = {n: a for n, a in WHOLE.items() if n != writing_host.ELSEWHERE}
    expected = {name: int(value) for name, value in fingerprint_numpy(shared).items()}
    asked = [host.asks("fingerprints") for host in hosts]  # one computation of both
    assert [one.result(ANSWER_S) for one in asked] == [expected, expected]


def check_here(hosts: list[Host]) -> None:
    """Each host has all arrays, divided among its four devices where an axis can be."""
    divided, repeated = 768 + 48 + 3072 + 20 + 8, 7 + 1
    for order in (range(8), [0, 1, 4, 5, 2, 3, 6, 7]):  # the other is that of squares of chips
        asked = [host.asks("here", list(order)) for host in hosts]
        assert [one.result(ANSWER_S) for one in asked] == [divided + 4 * repeated] * 2


def check_version(hosts: list[Host], path: Path) -> None:
    directory = hosts[0].ask("begin", str(path))
    written = [host.asks("write", directory) for host in hosts]
    chunks = [one.result(ANSWER_S) for one in written]
    # Host 0 writes its half of the shards, and everything that both hosts hold.
    replicated = ("within_a_host", "replicated", "scalar")
    halves = sum(CHUNKS.values()) - sum(CHUNKS[n] for n in replicated) - CHUNKS["elsewhere"]
    assert chunks[0] - sum(CHUNKS[n] for n in replicated) == halves // 2
    assert chunks[1] - CHUNKS["elsewhere"] == halves // 2
    assert not path.exists()
    assert hosts[0].ask("commit", str(path), directory, sum(chunks)) is None
    for name, count in CHUNKS.items():
        files = [p for p in (path / name).rglob("*") if p.is_file() and p.name != "zarr.json"]
        assert len(files) == count, name
    check_loaded(OrbaxStore().load(str(path), WHOLE))
    one_device = {n: jax.numpy.asarray(a) for n, a in WHOLE.items()}
    check_loaded(OrbaxStore().load(str(path), one_device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        restore_args = {n: ocp.ArrayRestoreArgs(sharding=a.sharding) for n, a in one_device.items()}
        check_loaded(ocp.PyTreeCheckpointer().restore(path, restore_args=restore_args))
    # On a mesh of one host, and on another mesh of both.
    shards = len(WHOLE) * writing_host.DEVICES
    assert hosts[1].ask("load", str(path), []) == shards
    loads = [host.asks("load", str(path), ["first", "second"]) for host in hosts]
    assert [one.result(ANSWER_S) for one in loads] == [shards, shards]
    (error,) = hosts[0].ask("begin", str(path)).items()
    assert error == ("WeightsError", f"cannot write {path}: it exists")


def check_loaded(loaded: dict[str, Any]) -> None:
    for name, array in loaded.items():
        assert np.asarray(array).dtype == WHOLE[name].dtype, name
        assert np.asarray(array).tobytes() == WHOLE[name].tobytes(), name


def check_killed_host(hosts: list[Host], path: Path) -> None:
    """Host 1 is killed while it writes; host 0 removes what both have written."""
    before = sorted(path.parent.iterdir())
    directory = Path(hosts[0].ask("begin", str(path)))
    hosts[0].ask("write", str(directory))
    # Nobody reads it and the chunk is larger than a pipe: host 1 waits inside the write.
    stuck = directory / writing_host.ELSEWHERE / "c" / "0" / "0"
    stuck.parent.mkdir(parents=True)
    os.mkfifo(stuck)
    answer = hosts[1].asks("write", str(directory))
    written = directory / "last_axis" / "c" / "0" / "63"
    wait_until(written.exists, "host 1 writes its part of another array")
    assert not answer.done()
    hosts[1].process.kill()
    assert answer.result(ANSWER_S) == "ended"
    assert hosts[0].ask("abandon", str(path)) is None
    assert sorted(path.parent.iterdir()) == before
