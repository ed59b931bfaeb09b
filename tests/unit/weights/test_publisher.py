"""Publishing: in order, visible before the next, and loud when it fails."""

import asyncio
import errno
import functools
import re
import threading
import time
from typing import Any

import numpy as np
import pytest
from waiting import eventually, wait_until

from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.errors import (
    DeadlineError,
    WeightsError,
    WeightsUnreadableError,
    WeightsUnwritableError,
)
from rlax_plugin.base.types import BASE, Canary, WeightVersion
from rlax_plugin.ports.training import NewWeights
from rlax_plugin.weights.memory_copies import read
from rlax_plugin.weights.publisher import ASKING, Publisher, WriteTimes, by_one_host

ARRAYS = {"w": np.arange(4, dtype=np.float32)}


def weights(step, canary=None):
    return NewWeights(step, {BASE: ARRAYS}, canary)


class Store:
    def __init__(self, gate: threading.Event | None = None, error: Exception | None = None):
        self.gate, self.error, self.paths = gate, error, []

    def save(self, path: str, arrays: Any) -> None:
        if self.gate is not None:
            self.gate.wait(60)
        if self.error is not None:
            raise self.error
        self.paths.append(path)


class Announcer:
    """A parameter server that does what a test wants when a version is to become visible."""

    watched_here, watched_inside, watched_elsewhere = 1, 0, 1

    def __init__(self, announce):
        self._announce, self.paths, self.offered, self.visible = announce, [], [], []

    async def offer(self, version, inside):
        assert not inside
        self.offered.append(version)

    async def writing(self, path):
        self.paths.append(path)

    async def publish(self, version, restart=False):
        if self._announce is not None:
            await self._announce(version, restart)


class Failures:
    """Takes what a publisher reports, in place of a run's ``Supervision``."""

    def __init__(self):
        self.errors, self.told = [], threading.Event()

    def fail_from_thread(self, error):
        self.errors.append(error)
        self.told.set()


class Pace(WriteTimes):
    def needed_s(self, name):
        return {"weights_s": 5.0}[name]


@pytest.fixture
def make(loop):
    """Makes publishers, which are closed at the end: their threads wait for work until then."""
    made: list[Publisher] = []

    def make(store, announce=None, deadline_s=60.0, most_copied=0):
        seen: list[WeightVersion] = []
        failures = Failures()
        announcer = announce if isinstance(announce, Announcer) else Announcer(announce)
        publisher = Publisher(
            loop=loop,
            write=by_one_host(store),
            directory="/weights/",
            announcer=announcer,
            on_visible=lambda version: announcer.visible.append(version.version),
            on_published=seen.append,
            failures=failures,
            deadline_s=deadline_s,
            near=announcer,
            memory_bytes=most_copied,
            pace=Pace(),
        )
        made.append(publisher)
        return publisher, seen, failures.errors, failures.told

    yield make
    for publisher in made:
        publisher.close()


def test_versions_are_visible_in_order_with_their_fingerprints(make):
    publisher, seen, errors, _ = make(Store())
    publisher.publish(weights(0))
    publisher.publish(weights(1))  # waits for 0
    assert [v.version for v in seen][:1] == [0]
    publisher.wait()
    assert [v.version for v in seen] == [0, 1] and not errors
    assert seen[0].tensors["w"].shape == (4,) and seen[0].tensors["w"].dtype == "float32"
    assert seen[0].tensors["w"].fingerprint == seen[1].tensors["w"].fingerprint
    assert seen[1].paths[0].startswith("/weights/00000001-")
    publisher.close()


def test_its_activity_says_whether_the_store_is_waited_for_or_the_parameter_server(make):
    doing = []

    def note():
        doing.append(publisher.activity.doing)

    class Noted(Store):
        def save(self, path, arrays):
            note()

    class Server(Announcer):
        async def writing(self, path):
            note()

        async def publish(self, version, restart=False):
            note()

    publisher, _, errors, _ = make(Noted(), Server(None))
    publisher.publish(weights(3))
    publisher.wait()
    words = "publishing version 3"
    assert [one.what for one in doing] == [f"{words}{ASKING}", words, f"{words}{ASKING}"]
    assert len({one.since for one in doing}) == 1 and not errors
    assert publisher.activity.doing is None


def test_the_newest_version_is_published_again_in_full_at_another_path(make):
    restarts = []

    async def noted(version, restart):
        restarts.append((version.version, restart))

    publisher, seen, errors, _ = make(Store(), noted)
    for step in (0, 1):
        publisher.publish(weights(step))
    assert publisher.holds(1) and not publisher.holds(0)
    publisher.again()
    publisher.wait()
    first, again = seen[1:]
    assert [v.version for v in seen] == [0, 1, 1] and not errors
    assert again.paths != first.paths and again.tensors == first.tensors
    assert restarts == [(0, True), (1, False), (1, True)]  # it takes the place of the other one
    publisher.publish(weights(2))
    publisher.forget()
    assert not publisher.holds(2)  # the next one is on its way
    publisher.wait()
    assert [v.version for v in seen] == [0, 1, 1, 2]


@pytest.mark.parametrize("where", ["store", "announce"])
def test_a_failure_reaches_the_run_and_the_trainer(make, where):
    error = WeightsError("no space left")

    async def reject(version, restart):
        raise error

    store = Store(error=error if where == "store" else None)
    publisher, seen, errors, told = make(store, reject)
    publisher.publish(weights(0))
    with pytest.raises(WeightsError, match="no space left"):
        publisher.publish(weights(1))
    with pytest.raises(WeightsError, match="no space left"):
        publisher.wait()
    assert told.wait(60) and not seen and [str(one) for one in errors] == [str(error)]
    publisher.close()


def test_an_announcement_that_hangs_has_a_deadline(make):
    async def hang(version, restart):
        await asyncio.Event().wait()

    publisher, seen, errors, told = make(Store(), hang, deadline_s=0.05)
    publisher.publish(weights(0))
    assert told.wait(60) and not seen
    assert isinstance(errors[0], DeadlineError) and errors[0].key == "rlax.deadlines.weights_s"
    assert errors[0].needed_s == 5.0


def test_a_store_that_hangs_keeps_nobody(make):
    gate, before = threading.Event(), set(threading.enumerate())
    publisher, *_ = make(Store(gate), deadline_s=0.05)
    publisher.publish(weights(0))
    with pytest.raises(DeadlineError, match="weights_s"):
        publisher.wait()
    publisher.close()  # returns, and the threads are daemons
    threads = set(threading.enumerate()) - before
    assert all(thread.daemon for thread in threads)
    (left,) = [thread for thread in threads if thread.name == "publish"]
    gate.set()
    left.join(60)  # it still needs this test's event loop
    assert not left.is_alive()


def test_a_canary_is_fetched_from_the_device_and_travels_with_its_version(make):
    class OnDevice:
        """Like a JAX array; where it is fetched is what matters."""

        def __array__(self, dtype=None, copy=None):
            fetched_by.append(threading.current_thread().name)
            return np.array([-0.5, -2.25], np.float64)

    fetched_by = []
    publisher, seen, errors, _ = make(Store())
    tokens = np.array([3, 1, 2], np.int32)
    publisher.publish(weights(1, Canary(tokens, OnDevice(), 1e-4)))
    publisher.publish(weights(2))
    publisher.wait()
    assert not errors and set(fetched_by) == {"publish"}
    canary = seen[0].canary
    assert canary.logprobs.dtype == np.float32 and canary.logprobs.tolist() == [-0.5, -2.25]
    assert canary.tokens.tolist() == [3, 1, 2] and canary.tolerance == 1e-4
    assert seen[1].canary is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_canary_that_is_not_finite_is_not_announced(make, wrong):
    publisher, seen, _, told = make(store := Store())
    logprobs = np.array([-1.0, wrong, wrong], np.float32)
    publisher.publish(weights(4, Canary(np.arange(4, dtype=np.int32), logprobs, 1e-4)))
    with pytest.raises(WeightsError, match="version 4: 2 of 3 log-probs of its canary are not"):
        publisher.wait()
    assert told.wait(60) and not seen and not store.paths


def failing(times: int, error: Exception) -> Store:
    class Failing(Store):
        def save(self, path: str, arrays: Any) -> None:
            tried.append(path)
            if len(tried) <= times:
                raise error
            super().save(path, arrays)

    tried: list[str] = []
    store = Failing()
    store.tried = tried
    return store


@pytest.fixture
def short(monkeypatch):
    """Pauses between tries that no test has to wait for."""
    pauses = functools.partial(Pauses, first_s=0.01, longest_s=0.02)
    monkeypatch.setattr("rlax_plugin.weights.publisher.Pauses", pauses)


@pytest.mark.parametrize(
    "error", [WeightsUnwritableError("reset"), OSError(errno.EACCES, "denied")]
)
def test_a_save_is_repeated_at_another_path_while_the_store_is_away(make, short, error):
    server = Announcer(None)
    publisher, seen, errors, _ = make(store := failing(3, error), server)
    listed = server.paths
    publisher.publish(weights(0))
    publisher.wait()
    assert not errors and [p for v in seen for p in v.paths] == store.paths == store.tried[3:]
    assert store.tried == listed and len(set(listed)) == 4  # each was listed before it was tried
    failed = publisher.unwritten.recent
    assert failed is not None and failed.count == 3
    assert failed.what == f"writing version 0: {error}"


def test_a_save_that_fails_for_weights_s_says_so(make, short):
    store = failing(10**9, WeightsUnwritableError("cannot write /weights: denied"))
    publisher, seen, errors, told = make(store, deadline_s=0.4)
    publisher.publish(weights(7))
    with pytest.raises(DeadlineError, match="version 7"):
        publisher.wait()
    assert told.wait(60) and not seen and 1 <= len(store.tried) < 42
    assert errors[0].key == "rlax.deadlines.weights_s" and errors[0].seconds == 0.4
    assert re.search(
        r"^writing version 7 \(\d+ failed attempts, the last with: .*deni", str(errors[0])
    )


def test_a_save_that_hangs_is_an_error_although_nobody_waits_for_it(make, monkeypatch):
    monkeypatch.setattr("rlax_plugin.weights.publisher._LATE_S", 0.0)
    gate = threading.Event()
    publisher, seen, errors, told = make(Store(gate), deadline_s=0.2)
    publisher.publish(weights(3))
    assert told.wait(60)
    assert errors[0].key == "rlax.deadlines.weights_s"
    assert re.search(r"^writing version 3 to /weights/00000003-\w+ took longer", str(errors[0]))
    publisher.close()  # it does not wait for the store
    assert not seen
    gate.set()


def test_a_time_out_of_the_server_is_told_apart_from_a_deadline(make):
    error = TimeoutError("the list of versions could not be written")

    async def announce(version, restart):
        raise error

    publisher, seen, errors, told = make(Store(), announce)
    publisher.publish(weights(0))
    with pytest.raises(TimeoutError, match="the list of versions"):
        publisher.wait()
    assert told.wait(60) and not seen and [str(one) for one in errors] == [str(error)]


def test_a_publication_that_takes_long_is_shown_with_its_reason_and_rarely_again(make):
    listed = threading.Event()

    async def frozen(version, restart):
        listed.set()
        await asyncio.to_thread(gate.wait, 60)

    gate = threading.Event()
    publisher, *_ = make(Store(), frozen, deadline_s=600.0)
    assert publisher.slow(time.time() + 1e6) == ""  # nothing is being published
    publisher.publish(weights(3))
    assert listed.wait(60)
    began = publisher.activity.doing.since
    times = {
        s: line for s in (9.9, 10.0, 11.0, 39.0, 40.0, 159.0) if (line := publisher.slow(began + s))
    }
    assert times == {
        s: f"publishing version 3 takes {s:.0f} s so far: announcing to the parameter server "
        "version 3; rlax.deadlines.weights_s = 600 s ends this wait"
        for s in (10.0, 40.0)
    }
    gate.set()
    publisher.wait()
    assert publisher.slow(time.time() + 1e6) == ""
    gate.clear(), listed.clear()
    publisher.last_s = 30.0  # such versions take so long
    publisher.publish(weights(4))
    assert listed.wait(60)
    began = publisher.activity.doing.since
    assert publisher.slow(began + 119.0) == "" and "takes 120 s" in publisher.slow(began + 120.0)
    gate.set()
    publisher.wait()


def test_weights_that_cannot_be_written_are_shown_with_the_error(make, monkeypatch):
    monkeypatch.setattr("rlax_plugin.weights.publisher._SLOW_S", 0.0)
    store = Store(error=OSError(errno.ENOSPC, "No space left on device"))
    publisher, *_ = make(store, deadline_s=600.0)
    publisher.publish(weights(0))
    wait_until(lambda: publisher.unwritten.count, "a failed attempt")
    store.gate = threading.Event()  # of the next attempt

    async def show() -> str:
        said: list[str] = []
        showing = asyncio.ensure_future(publisher.show_slow(said.append))
        await eventually(lambda: said)
        showing.cancel()
        return said[0]

    line = asyncio.run(show())
    assert re.fullmatch(
        r"publishing version 0 takes \d+ s so far: writing version 0 .*\d+ failed attempts, the "
        r"last with: .*No space left on device\); rlax.deadlines.weights_s = 600 s ends this wait",
        line,
    ), line
    store.error = None
    store.gate.set()
    publisher.wait()


def test_closing_repeats_no_save(make, monkeypatch):
    long = functools.partial(Pauses, first_s=60, longest_s=60)
    monkeypatch.setattr("rlax_plugin.weights.publisher.Pauses", long)
    store = failing(10**9, WeightsUnwritableError("away"))
    publisher, *_ = make(store, deadline_s=600.0)
    publisher.publish(weights(7))
    publisher.close()  # returns long before the first pause is over
    assert len(store.tried) == 1


def test_a_version_is_offered_in_memory_before_it_is_written_but_for_the_first(make):
    gate, announcer = threading.Event(), Announcer(None)
    publisher, seen, errors, _ = make(store := Store(), announcer, most_copied=100)
    publisher.publish(weights(3))
    publisher.wait()
    assert announcer.offered == [] and [v.version for v in seen] == [3]
    store.gate = gate
    publisher.publish(weights(4))
    wait_until(lambda: announcer.visible == [3, 4], "version 4 is told")
    assert len(seen) == len(store.paths) == 1  # that of version 3: this one is not written yet
    (offered,) = announcer.offered
    (part,) = offered.parts
    assert offered.version == 4 and offered.in_memory and not seen[0].in_memory
    assert read(part.memory, part.tensors)["w"].tolist() == [0.0, 1.0, 2.0, 3.0]
    gate.set()
    publisher.wait()
    assert store.paths[1] == part.path and not errors
    assert announcer.visible == [v.version for v in seen] == [3, 4]
    publisher.publish(NewWeights(5, {BASE: np_arrays(26)}, None))  # too large
    announcer.watched_here = 0
    publisher.publish(weights(6))  # nobody would read it
    publisher.wait()
    assert len(announcer.offered) == 1 and [v.version for v in seen] == [3, 4, 5, 6]
    with pytest.raises(WeightsUnreadableError, match="cannot be read"):
        read(part.memory, part.tensors)


def np_arrays(count):
    return {"w": np.arange(count, dtype=np.float32)}


def test_a_version_that_was_offered_and_cannot_be_written_ends_the_run(make):
    announcer = Announcer(None)
    publisher, seen, errors, told = make(store := Store(), announcer, most_copied=100)
    publisher.publish(weights(0))
    publisher.wait()
    store.error = WeightsError("no space left")
    publisher.publish(weights(1))
    assert told.wait(60) and str(errors[0]) == "no space left"
    assert [v.version for v in seen] == [0] and announcer.visible == [0, 1]
    with pytest.raises(WeightsError, match="no space left"):
        publisher.wait()
