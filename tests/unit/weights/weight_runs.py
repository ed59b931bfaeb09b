"""A run of which only the weight versions exist: one process after the other publishes them."""

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import VersionPart, WeightVersion
from rlax_plugin.weights.kept_versions import listed_versions, record_versions
from rlax_plugin.weights.parameter_server import ParameterServer

LIMIT_S = 60


class Disk:
    """Deletes directories, except while ``away``."""

    away = False

    def delete(self, path: str) -> None:
        if self.away:
            raise WeightsError(f"cannot delete {path}")
        shutil.rmtree(path, ignore_errors=True)


def write(path: str | Path) -> str:
    Path(path).mkdir(parents=True)
    Path(path, "bytes").touch()
    return str(path)


class Run:
    """A run's directory, and the processes that have it in turn, each with a server of its own."""

    def __init__(self, folder: Path, weights: Path | None = None, keep: int = 2):
        self.files, self.store, self._keep = RunFiles(folder), Disk(), keep
        self.weights = weights or folder / "weights"

    def process(
        self,
        main: Callable[[ParameterServer], Coroutine[Any, Any, None]],
        lease_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        async def life() -> None:
            server = ParameterServer(
                self.store,
                keep=self._keep,
                lease_s=lease_s,
                clock=clock,
                record=lambda text: record_versions(self.files, text),
                listed=listed_versions(self.files, str(self.weights)),
            )
            try:
                await asyncio.wait_for(main(server), LIMIT_S)
            finally:
                await server.close()

        asyncio.run(life())

    async def publish(
        self, server: ParameterServer, number: int, *names: str, restart: bool = False
    ) -> None:
        """Publishes a version of the directories of these names: the base, then an adapter."""
        paths = [str(self.weights / name) for name in names]
        for path in paths:
            if not Path(path).exists():
                await server.writing(path)
                write(path)
        parts = map(VersionPart, ("base", "adapter"), paths)
        await server.publish(WeightVersion(number, number, tuple(parts)), restart)

    def there(self) -> list[str]:
        return sorted(path.name for path in self.weights.iterdir())
