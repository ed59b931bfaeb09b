"""Workers of versions that share a part, over real gRPC, with files on a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_versions import scripted
from two_parts import BASE, NotingStore, adapter, canary, part_of
from worker_harness import Worker, run, section, trainer, until

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.weights.parameter_server import ParameterServer


class Policies:
    """Publishes the toy policy in two parts, of which the base is written once."""

    def __init__(self, directory: Path, one: Any, store: NotingStore):
        self._directory, self._one, self.store = directory, one, store
        self.base = str(directory / "base")
        store.save(self.base, BASE)

    def path(self, number: int) -> str:
        return str(self._directory / str(number))

    async def publish(self, number: int) -> None:
        self.store.save(self.path(number), adapter(number))
        parts = (
            part_of(self.base, BASE, "base"),
            part_of(self.path(number), adapter(number), "adapter"),
        )
        await self._one.parameters.publish(WeightVersion(number, number, parts, canary(number)))
        self._one.fleet.newest.number = number


def test_workers_read_what_they_lack_and_damage_to_it_quarantines(tmp_path: Path) -> None:
    """One that has the damaged part goes on; one that joins reads it, and is quarantined."""

    async def main() -> None:
        settings, kept = section(), NotingStore()
        parameters = ParameterServer(kept, keep=1, lease_s=60)
        async with trainer(settings, parameters=parameters) as one:
            policies = Policies(tmp_path, one, NotingStore())
            await policies.publish(0)
            read = NotingStore()
            worker = Worker("w", scripted(read), settings, one.address)
            await until(lambda: one.held("w") == 0)
            assert read.loaded == [policies.base, policies.path(0)]

            file = next(Path(policies.base).iterdir())
            file.write_bytes(file.read_bytes()[:-100])
            await policies.publish(1)
            await until(lambda: one.held("w") == 1)
            assert read.loaded[2:] == [policies.path(1)]
            await until(lambda: kept.deleted == [policies.path(0)])

            joins = Worker("late", scripted(NotingStore()), settings, one.address)
            with pytest.raises(WeightsError, match="damaged"):
                await joins.life
            await until(lambda: one.quarantined)
            ((name, reason),) = one.quarantined
            assert name == "late" and policies.base in reason

            await policies.publish(2)
            await until(lambda: one.held("w") == 2)
            assert read.loaded[3:] == [policies.path(2)]
            await worker.leave()

    run(main)
