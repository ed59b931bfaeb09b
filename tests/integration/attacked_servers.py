"""The project's own servers in processes of their own, for tests that send them what is wrong.

``python -m attacked_servers NAME DIRECTORY`` runs one; it prints its address, and ends with its
standard input. Whatever its store is told to delete is noted in ``deleted`` first.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rlax_plugin.base.types import Canary, TensorSpec, WeightVersion
from rlax_plugin.config.network import Place
from rlax_plugin.rpc.security.run_secrets import RunSecrets, run_secrets
from rlax_plugin.rpc.security.secret import Secret, read_secret
from rlax_plugin.testing.builders import make_version

DEADLINE_S = 120.0
LIMITS = {"slots": 4, "group_size": 4, "max_prompt_tokens": 16, "max_new_tokens": 16}
KEEP, LEASE_S = 2, 600.0  # none expires while a test counts leases


def written(weights: Path, number: int) -> WeightVersion:
    """A version as a trainer publishes it, whose directory is there."""
    import numpy as np

    path = weights / f"v{number}"
    path.mkdir(parents=True, exist_ok=True)
    tensors = {f"layer{i}.w": TensorSpec((4, 8), "bfloat16", 1000 + i) for i in range(20)}
    canary = Canary(np.arange(9, dtype=np.int32), np.full(8, -1.5, np.float32), 0.01)
    return make_version(number, str(path), tensors, canary)


class _Noting:
    """A store whose deletions are noted before they are done."""

    def __init__(self, directory: Path):
        self._notes = directory / "deleted"

    def delete(self, path: str) -> None:
        with self._notes.open("a") as notes:
            notes.write(json.dumps(path) + "\n")
        shutil.rmtree(path)


async def _until_stdin_ends() -> None:
    await asyncio.to_thread(sys.stdin.read)


async def _controller(directory: Path) -> None:
    from sections import section_with

    from rlax_plugin.rollout.fleet.deadlines import Pace
    from rlax_plugin.rollout.fleet.dispatch import Dispatcher, RequestRefresher
    from rlax_plugin.rollout.fleet.fleet import Fleet
    from rlax_plugin.rollout.fleet.fleet_service import FleetService
    from rlax_plugin.rpc import rlax_pb2_grpc as rpc
    from rlax_plugin.rpc.transport.doors import Door, listen
    from rlax_plugin.weights.parameter_server import ParameterServer

    section = section_with(rollouts=LIMITS, deadlines={"heartbeat_s": 60.0})
    secrets = run_secrets(directory)
    callers = secrets.callers()
    server, address = listen("127.0.0.1", 0, Door(callers, secrets.identity), "port")
    parameters = ParameterServer(
        _Noting(directory),
        keep=KEEP,
        lease_s=LEASE_S,
        record=(directory / "record").write_text,
        published_in=str(directory / "weights"),  # as if the trainer were another process
    )
    parameters.add_to(server)
    fleet = Fleet(
        deadlines=section.deadlines,
        config_hash="abc",
        parameter_server=address,
        config=b'{"steps": 1}',
    )
    rpc.add_FleetServicer_to_server(FleetService(fleet, callers), server)
    pace = Pace(section, fleet.workers, 1, lambda text: None)
    dispatcher = Dispatcher(fleet, section.deadlines, RequestRefresher(), pace)
    fleet.listeners += [dispatcher, pace]
    await server.start()
    for number in range(4):
        await parameters.publish(written(directory / "weights", number))
        fleet.newest.number = number
    watch = asyncio.ensure_future(fleet.watch())
    print(address, flush=True)
    await _until_stdin_ends()
    watch.cancel()
    await dispatcher.close()
    await fleet.close()
    await parameters.close()
    await server.stop(None)


class _Weights:
    """A store that holds the toy policy's weights, whatever the version."""

    def load(self, path: str, like: Any) -> dict[str, Any]:
        from rlax_plugin.testing import policy

        return policy.initial_weights(0)


async def _worker(directory: Path) -> None:
    from bigram_slots import BigramSlots, BigramSlotsConfig
    from rlax_jetstream import JetstreamConfig
    from rlax_jetstream.engine import JetstreamEngine
    from sections import section_with

    from rlax_plugin.rollout.worker.endpoint import Endpoint, Scrapes
    from rlax_plugin.rollout.worker.rollout_service import RolloutService
    from rlax_plugin.testing.task import Numbers, NumbersConfig
    from rlax_plugin.weights.fingerprint import fingerprint_numpy

    section = section_with(rollouts=LIMITS | {"on_new_weights": "continue"})
    engine = JetstreamEngine(
        make_slots=lambda: BigramSlots(section.rollouts, BigramSlotsConfig()),
        store=_Weights(),
        rollouts=section.rollouts,
        config=JetstreamConfig(),
        make_prompt_source=lambda: Numbers(NumbersConfig()),
        max_context=section.max_context_tokens,
        fingerprint=fingerprint_numpy,
    )
    token_file = directory / "client.json"
    with Endpoint(
        Place(),
        engine,
        name="attacked",
        scrapes=Scrapes(0),
        clients="token",
        client_roles=("client", "trainer"),
        token_file=token_file,
    ) as endpoint:
        service = RolloutService(engine, section)
        services = await endpoint.start(service)
        arrays = _Weights().load("", {})
        prints = fingerprint_numpy(arrays)
        tensors = {
            name: TensorSpec(array.shape, array.dtype.name, int(prints[name]))
            for name, array in arrays.items()
        }
        await engine.use(await engine.load(make_version(3, "nowhere", tensors)))
        await services
        print(endpoint.address, flush=True)
        await _until_stdin_ends()
        await endpoint.server.stop(None)
    engine.close()


@dataclass
class Attacked:
    """A server in a process of its own.

    Attributes:
      trainer: what its trainer, or a client, calls it with.
      worker: what its workers call it with.
    """

    process: subprocess.Popen[str]
    directory: Path
    address: str
    trainer: Secret
    worker: Secret

    @property
    def rss_mb(self) -> float:
        return psutil.Process(self.process.pid).memory_info().rss / 1e6

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    @property
    def deleted(self) -> list[str]:
        """Paths that its store was told to delete."""
        notes = self.directory / "deleted"
        return (
            [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
        )


@contextmanager
def running(name: str, directory: Path) -> Iterator[Attacked]:
    """A server until the end of the block, where it must end by itself."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "weights").mkdir()
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "attacked_servers", name, str(directory)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        address = process.stdout.readline().strip()
        assert address, (directory / "log").read_text()
        if name == "worker":
            secret = read_secret(directory / "client.json", "token_file")
            yield Attacked(process, directory, address, secret, secret)
        else:
            secrets: RunSecrets = run_secrets(directory)
            yield Attacked(process, directory, address, secrets.of_trainer, secrets.of_worker)
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        process.stdout.close()


if __name__ == "__main__":
    from rlax_plugin.base.text.logs import log_to

    log_to(sys.stderr)
    lives = {"controller": _controller, "worker": _worker}
    asyncio.run(lives[sys.argv[1]](Path(sys.argv[2])))
