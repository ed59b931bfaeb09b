"""Publishing: in order, visible before the next, and loud when it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlax_plugin.controller.publisher import Publisher
from rlax_plugin.errors import DeadlineError, WeightsError
from rlax_plugin.types import WeightVersion

ARRAYS = {"w": np.arange(4, dtype=np.float32)}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


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

    async def visible(version):
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

    async def refuse(version):
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
    async def hang(version):
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
