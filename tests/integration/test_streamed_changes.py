"""Workers that are sent what has changed, over real gRPC: the bytes, and the bits they load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sparse_updates import SparseTrainer, holds
from test_streaming_workers import streaming
from worker_harness import Worker, run, trainer, until

from rlax_plugin.config import RlaxSection
from rlax_plugin.testing import FakeEngine
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.types import WeightVersion
from rlax_plugin.weights.parameter_server import ParameterServer


def sizes(version: WeightVersion) -> list[int]:
    return [Path(path, "weights.npz").stat().st_size for path in version.paths]


@asynccontextmanager
async def publishing(root: Path, settings: RlaxSection, store: NpzStore) -> AsyncIterator[Any]:
    """A run, and its trainer, which publishes to a parameter server that keeps one version."""
    parameters, loop = ParameterServer(store, keep=1, lease_s=60), asyncio.get_running_loop()
    async with trainer(settings, parameters=parameters) as one:
        published = SparseTrainer(loop, root / "weights", store, parameters)
        try:
            yield one, published
        finally:
            await asyncio.to_thread(published.publisher.close)


def test_each_worker_is_sent_what_it_lacks(tmp_path: Path) -> None:
    async def main() -> None:
        settings, store = streaming(tmp_path), NpzStore()
        async with publishing(tmp_path, settings, store) as (one, published):
            parameters = one.parameters
            first, sent = FakeEngine(store), 0
            Worker("first", first, settings, one.address)
            for number in range(6):
                version = await asyncio.to_thread(published.publish)
                one.fleet.newest.number = number
                await until(lambda number=number: one.held("first") == number)
                assert holds(first, published.weights[number])
                sent += sizes(version)[-1]
                assert parameters.streams.sent_bytes == sent
            whole, *changes = sizes(published.versions[-1])
            assert len(changes) == 2 and max(changes) < whole / 10
            late = FakeEngine(store)
            Worker("late", late, settings, one.address)
            await until(lambda: one.held("late") == 5)
            assert holds(late, published.weights[5])
            assert parameters.streams.sent_bytes == sent + whole + sum(changes)
            # Of the versions before the last full one nothing is left, here and there.
            await until(lambda: len(list((tmp_path / "weights").iterdir())) == 3)
            await until(lambda: len(list((tmp_path / "copies").glob("worker-*/*"))) == 6)
            assert one.quarantined == []

    run(main)


def test_a_worker_that_reloads_seldom_misses_the_full_version(tmp_path: Path) -> None:
    async def main() -> None:
        settings, store = streaming(tmp_path), NpzStore()
        staleness = settings.staleness.model_copy(update={"reload_every": 4, "max_staleness": 4})
        settings = settings.model_copy(update={"staleness": staleness})
        async with publishing(tmp_path, settings, store) as (one, published):
            parameters = one.parameters
            engine, sent = FakeEngine(store), 0
            Worker("w", engine, settings, one.address)
            for number in range(9):
                version = await asyncio.to_thread(published.publish)
                here = sizes(version)
                one.fleet.newest.number = number
                await until(lambda number=number: one.held("w") == number // 4 * 4)
                assert holds(engine, published.weights[number // 4 * 4])
                # 4 consists of 3, which is complete, and its changes; 8 of 6 and two of them.
                sent += sum(here) if number in (0, 4, 8) else 0
                assert len(here) == number % 3 + 1 and parameters.streams.sent_bytes == sent

    run(main)
