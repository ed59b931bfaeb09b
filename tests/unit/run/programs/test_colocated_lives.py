"""The worker in the trainer's process ends with its run, whatever its engine is doing."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from sections import section_with
from waiting import wait_until

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.run.programs import colocated


class Engine:
    """Counts how often it was closed, and may take for ever to do so."""

    version = -1

    def __init__(self) -> None:
        self.closed, self.may_end = 0, threading.Event()

    def close(self) -> None:
        self.closed += 1
        self.may_end.wait(60)


def begun(devices: Devices) -> asyncio.Task[None]:
    section = section_with()
    run: Any = SimpleNamespace(section=section)
    worker = colocated.colocated_worker(run, ResolvedConfig(section), devices, None)  # type: ignore[arg-type]
    return asyncio.ensure_future(worker)


async def test_an_engine_that_is_built_when_the_run_has_ended_is_closed(monkeypatch):
    engine, building, built = Engine(), threading.Event(), threading.Event()
    engine.may_end.set()

    def build_part(*about: Any) -> Engine:
        building.set()
        assert built.wait(60)
        return engine

    monkeypatch.setattr(colocated, "build_part", build_part)
    devices = Devices()
    devices.rest()
    life = begun(devices)
    await asyncio.to_thread(building.wait, 60)
    life.cancel()
    await asyncio.wait({life})
    assert life.cancelled() and engine.closed == 0
    built.set()
    wait_until(lambda: engine.closed == 1)


async def test_an_engine_that_does_not_close_hides_no_error_and_holds_up_no_end(monkeypatch):
    engine = Engine()
    monkeypatch.setattr(colocated, "build_part", lambda *about: engine)
    monkeypatch.setattr(colocated, "_CLOSE_S", 0.05)

    def refuse(*about: Any) -> None:
        raise ValueError("it cannot score")

    monkeypatch.setattr(colocated, "check_scores", refuse)
    devices = Devices()
    devices.rest()
    with pytest.raises(ValueError, match="it cannot score"):
        await asyncio.wait_for(begun(devices), 30)
    assert engine.closed == 1
    engine.may_end.set()
