"""A part of a version is visible only once all hosts have written their chunks of it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from led import led_by_host_0
from sections import section_with
from waiting import wait_until

from rlax_plugin.base.errors import (
    ConfigError,
    DeadlineError,
    TrainingError,
    WeightsError,
    WeightsUnwritableError,
)
from rlax_plugin.base.types import VersionPart, WeightVersion
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.run.hosts import leading
from rlax_plugin.run.hosts.following import OwnChunks
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.weights.shared_writes import SharedWrites, shared_writer

WEIGHTS = "/run/weights"


class Store:
    """A store in memory (fake): each array is one chunk of the host that holds it."""

    def __init__(self, own):
        self.own, self.calls, self.lock = set(own), [], threading.Lock()
        self.fails = 0  # how many writes fail
        self.expected = 0

    def note(self, *call):
        with self.lock:
            self.calls.append(call)

    def begin(self, path, arrays):
        self.note("begin", path)
        return f"{path}.tmp"

    def write(self, directory, arrays):
        if self.fails:
            self.fails -= 1
            raise WeightsUnwritableError(f"cannot write {directory}: the disk is full")
        self.note("write", directory)
        return len(self.own & set(arrays))

    def commit(self, path, directory, arrays, chunks):
        if chunks != len(arrays):
            raise WeightsError(f"{chunks} of {len(arrays)} chunks were written")
        self.note("commit", path, directory)

    def abandon(self, path):
        self.note("abandon", path)


ARRAYS = dict.fromkeys("abc")


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr(leading, "POLL_S", 0.2)


@pytest.fixture
def hosts():
    """A leader with its store, and another host's store and writer."""
    with led_by_host_0() as led:
        own, other = Store("ab"), Store("c")
        led.leader.writes = writes = SharedWrites(own, 2, led.thread.loop, 60)
        chunks = OwnChunks(led.joined(), other, WEIGHTS, 60)
        yield writes, own, other, chunks
        writes._visible = 1 << 40, set()  # nothing is left to wait for
        led.thread.loop.call_soon_threadsafe(writes._changes.wake)
        chunks.close()


def test_both_hosts_write_before_host_0_commits(hosts):
    writes, own, other, chunks = hosts
    chunks.write(4, {"base": ARRAYS})
    writes.write(4, "base", f"{WEIGHTS}/4", ARRAYS)
    chunks.wait()
    tmp = f"{WEIGHTS}/4.tmp"
    assert other.calls == [("write", tmp)]
    assert own.calls == [("begin", f"{WEIGHTS}/4"), ("write", tmp), ("commit", f"{WEIGHTS}/4", tmp)]


def test_host_0_waits_for_a_slow_host(hosts):
    writes, own, _, chunks = hosts
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(writes.write, 4, "base", f"{WEIGHTS}/4", ARRAYS)
        wait_until(lambda: own.calls and own.calls[-1][0] == "write", "host 0's own chunks")
        time.sleep(0.2)
        assert not written.done() and own.calls[-1][0] == "write"
        chunks.write(4, {"base": ARRAYS})
        written.result(60)
    assert own.calls[-1][0] == "commit"


def test_parts_and_versions_follow_each_other(hosts):
    writes, own, other, chunks = hosts
    chunks.write(1, {"base": ARRAYS, "adapter": ARRAYS})
    for part in ("base", "adapter"):
        writes.write(1, part, f"{WEIGHTS}/1-{part}", ARRAYS)
    chunks.write(2, {"adapter": ARRAYS})
    writes.write(2, "adapter", f"{WEIGHTS}/2", ARRAYS)
    chunks.wait()
    names = ["1-base", "1-adapter", "2"]
    assert other.calls == [("write", f"{WEIGHTS}/{name}.tmp") for name in names]
    assert [call[1] for call in own.calls if call[0] == "commit"] == [
        f"{WEIGHTS}/{name}" for name in names
    ]


def test_a_version_that_is_not_written_is_not_waited_for(hosts):
    writes, own, other, chunks = hosts
    chunks.write(4, {"base": ARRAYS})
    unwritten = WeightVersion(4, 4, (VersionPart("base", f"{WEIGHTS}/4"),))
    writes._loop.call_soon_threadsafe(writes.skip, unwritten)
    chunks.wait()
    assert not other.calls
    chunks.write(5, {"base": ARRAYS})
    writes.write(5, "base", f"{WEIGHTS}/5", ARRAYS)
    chunks.wait()
    assert other.calls == [("write", f"{WEIGHTS}/5.tmp")]
    assert own.calls[-1][0] == "commit"


def test_what_one_host_cannot_write_is_written_again_elsewhere(hosts):
    writes, own, other, chunks = hosts
    other.fails = 1
    chunks.write(4, {"base": ARRAYS})
    with pytest.raises(WeightsUnwritableError, match=r"host 1: cannot write .* the disk is full"):
        writes.write(4, "base", f"{WEIGHTS}/4", ARRAYS)
    assert own.calls[-1] == ("abandon", f"{WEIGHTS}/4")
    writes.write(4, "base", f"{WEIGHTS}/4-again", ARRAYS)
    chunks.wait()
    assert other.calls == [("write", f"{WEIGHTS}/4-again.tmp")]
    assert own.calls[-1][0] == "commit"


def test_what_host_0_cannot_write_is_written_again_even_if_its_remains_stay(hosts, monkeypatch):
    writes, own, other, chunks = hosts
    own.fails, abandoned = 1, []

    def stay(path):
        abandoned.append(path)
        raise WeightsError(f"cannot delete the remains of {path}")

    monkeypatch.setattr(own, "abandon", stay)
    chunks.write(4, {"base": ARRAYS})
    with pytest.raises(WeightsUnwritableError, match="the disk is full"):  # so it is tried again
        writes.write(4, "base", f"{WEIGHTS}/4", ARRAYS)
    assert abandoned == [f"{WEIGHTS}/4"]
    writes.write(4, "base", f"{WEIGHTS}/5", ARRAYS)
    chunks.wait()
    assert own.calls[-1][0] == "commit" and other.calls[-1] == ("write", f"{WEIGHTS}/5.tmp")


def test_a_silent_host_is_named_and_nothing_becomes_visible(hosts):
    writes, own, _, _ = hosts
    writes._deadline_s = 1.0
    with pytest.raises(DeadlineError, match=r"waiting for host 1 took longer .*weights_s"):
        writes.write(4, "base", f"{WEIGHTS}/4", ARRAYS)
    assert own.calls[-1][0] == "abandon"


def test_too_few_chunks_are_not_committed(hosts):
    writes, own, other, chunks = hosts
    other.own.clear()  # it says that it has written none
    chunks.write(4, {"base": ARRAYS})
    with pytest.raises(WeightsError, match="2 of 3 chunks were written"):
        writes.write(4, "base", f"{WEIGHTS}/4", ARRAYS)
    assert own.calls[-1][0] == "abandon"


@pytest.mark.parametrize(
    "path", ["/etc/cron.d/x", f"{WEIGHTS}/a/../b", f"{WEIGHTS}/a/b", "relative", "gs://other/x"]
)
def test_a_host_writes_only_directly_below_the_weights_directory(hosts, path):
    writes, _, other, chunks = hosts
    chunks.write(4, {"base": ARRAYS})
    with pytest.raises(WeightsUnwritableError, match="host 1: host 0 names"):
        writes.write(4, "base", path, ARRAYS)
    with pytest.raises(WeightsError, match="not directly below /run/weights"):
        chunks.wait()
    assert other.calls == []


@pytest.mark.parametrize(
    "own", ["/home/../run/weights", "/run//weights/", "gs://bucket/run/weights"]
)
def test_the_directory_of_the_config_may_be_written_in_any_way(own):
    with led_by_host_0() as led:
        led.leader.writes = writes = SharedWrites(Store("ab"), 2, led.thread.loop, 60)
        other = Store("c")
        chunks = OwnChunks(led.joined(), other, own, 60)
        chunks.write(4, {"base": ARRAYS})
        writes.write(4, "base", f"{own.rstrip('/')}/4", ARRAYS)
        chunks.wait()
        chunks.close()
        assert other.calls == [("write", f"{own.rstrip('/')}/4.tmp")]


def test_an_impossible_number_of_chunks_is_rejected():
    with led_by_host_0() as led:
        led.leader.writes = writes = SharedWrites(Store("ab"), 2, led.thread.loop, 5)
        zero = led.joined()
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(writes.write, 0, "base", f"{WEIGHTS}/0", ARRAYS)
            request = pb.ChunksRequest(host=1, version=0, part="base")
            request.written = wait_until(lambda: zero.chunks(request).directory, "where to write")
            for request.chunks in (-1, 1 << 41):
                with pytest.raises(TrainingError, match="says that it wrote"):
                    zero.chunks(request)
            with pytest.raises(DeadlineError):
                written.result(60)


def test_a_store_of_one_host_is_rejected_by_its_key():
    with pytest.raises(ConfigError, match=r"rlax\.weights\.store.*several hosts: choose orbax"):
        shared_writer(NpzStore(), section_with())
