"""Publishing: in order, visible before the next, and loud when it fails."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from rlax_plugin.controller.publisher import Publisher
from rlax_plugin.errors import DeadlineError, WeightsError
from rlax_plugin.records.faults import FaultPoint
from rlax_plugin.types import Canary, WeightVersion

ARRAYS = {"w": np.arange(4, dtype=np.float32)}


class Store:
    def __init__(self, gate: threading.Event | None = None, error: Exception | None = None):
        self.gate, self.error, self.paths = gate, error, []

    def save(self, path: str, arrays: Any) -> None:
        if self.gate is not None:
            self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.paths.append(path)


def make(loop, store, announce=None, deadline_s=10.0):
    seen: list[WeightVersion] = []
    errors: list[BaseException] = []
    told = threading.Event()

    async def visible(version, restart):
        pass

    def on_error(error):
        errors.append(error)
        told.set()

    publisher = Publisher(
        loop=loop,
        store=store,
        directory="/weights/",
        announce=announce or visible,
        on_published=seen.append,
        on_error=on_error,
        deadline_s=deadline_s,
    )
    return publisher, seen, errors, told


def test_versions_are_visible_in_order_with_their_fingerprints(loop):
    publisher, seen, errors, _ = make(loop, Store())
    publisher.publish(0, ARRAYS)
    publisher.publish(1, ARRAYS)  # waits for 0
    assert [v.version for v in seen][:1] == [0]
    publisher.wait()
    assert [v.version for v in seen] == [0, 1] and not errors
    assert seen[0].tensors["w"].shape == (4,) and seen[0].tensors["w"].dtype == "float32"
    assert seen[0].tensors["w"].fingerprint == seen[1].tensors["w"].fingerprint
    assert seen[1].path.startswith("/weights/00000001-")
    publisher.close()


@pytest.mark.parametrize("where", ["store", "announce"])
def test_a_failure_reaches_the_run_and_the_trainer(loop, where):
    error = WeightsError("no space left")

    async def refuse(version, restart):
        raise error

    store = Store(error=error if where == "store" else None)
    publisher, seen, errors, told = make(loop, store, refuse)
    publisher.publish(0, ARRAYS)
    with pytest.raises(WeightsError, match="no space left"):
        publisher.publish(1, ARRAYS)
    with pytest.raises(WeightsError, match="no space left"):
        publisher.wait()
    assert told.wait(10) and errors == [error] and not seen
    publisher.close()


def test_an_announcement_that_hangs_has_a_deadline(loop):
    async def hang(version, restart):
        await asyncio.Event().wait()

    publisher, seen, errors, told = make(loop, Store(), hang, deadline_s=0.05)
    publisher.publish(0, ARRAYS)
    assert told.wait(10) and not seen
    assert isinstance(errors[0], DeadlineError) and errors[0].key == "rlax.deadlines.weights_s"


def test_a_store_that_hangs_keeps_nobody(loop):
    gate = threading.Event()
    publisher, *_ = make(loop, Store(gate), deadline_s=0.05)
    publisher.publish(0, ARRAYS)
    with pytest.raises(DeadlineError, match="weights_s"):
        publisher.wait()
    publisher.close()  # returns, and the thread is a daemon
    assert all(t.daemon for t in threading.enumerate() if t.name == "publish")
    gate.set()


def test_only_the_first_version_of_a_process_is_a_restart(loop):
    told = []

    async def announce(version, restart):
        told.append((version.version, restart))

    publisher, _, errors, _ = make(loop, Store(), announce)
    for step in (5, 6, 7):
        publisher.publish(step, ARRAYS)
    publisher.wait()
    assert told == [(5, True), (6, False), (7, False)] and not errors


def test_a_canary_is_fetched_from_the_device_and_travels_with_its_version(loop):
    class OnDevice:
        """Like a JAX array; where it is fetched is what matters."""

        def __array__(self, dtype=None, copy=None):
            fetched_by.append(threading.current_thread().name)
            return np.array([-0.5, -2.25], np.float64)

    fetched_by = []
    publisher, seen, errors, _ = make(loop, Store())
    tokens = np.array([3, 1, 2], np.int32)
    publisher.publish(1, ARRAYS, Canary(tokens, OnDevice(), 1e-4))
    publisher.publish(2, ARRAYS)
    publisher.wait()
    assert not errors and set(fetched_by) == {"publish"}
    canary = seen[0].canary
    assert canary.logprobs.dtype == np.float32 and canary.logprobs.tolist() == [-0.5, -2.25]
    assert canary.tokens.tolist() == [3, 1, 2] and canary.tolerance == 1e-4
    assert seen[1].canary is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_canary_that_is_not_finite_is_not_announced(loop, wrong):
    publisher, seen, _, told = make(loop, store := Store())
    logprobs = np.array([-1.0, wrong, wrong], np.float32)
    publisher.publish(4, ARRAYS, Canary(np.arange(4, dtype=np.int32), logprobs, 1e-4))
    with pytest.raises(WeightsError, match="version 4: 2 of 3 log-probs of its canary are not"):
        publisher.wait()
    assert told.wait(10) and not seen and not store.paths


def test_faults_may_strike_when_bytes_are_written_and_when_workers_may_pull_them(loop, monkeypatch):
    seen_at = []

    def reached(point):
        seen_at.append((point, len(store.paths), [v.version for v in seen]))

    monkeypatch.setattr("rlax_plugin.records.faults.reached", reached)
    publisher, seen, *_ = make(loop, store := Store())
    publisher.publish(3, ARRAYS)
    publisher.wait()
    assert seen_at == [(FaultPoint.WEIGHTS_WRITTEN, 1, []), (FaultPoint.WEIGHTS_PUBLISHED, 1, [3])]
