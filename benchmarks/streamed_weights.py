"""Weights that the parameter server sends to workers: bytes, seconds, memory, and the train step.

One process is the trainer: its main thread runs a jitted step in a loop, and a second thread the
event loop of the parameter server, as in ``rlax train``. Other processes are workers that receive a
version and delete it again. As the lower limit of what the workers cost, the same processes copy
the files from their path and digest them. Run it with nothing else on the machine::

    python benchmarks/streamed_weights.py                      # 200 MB to 2 and to 16 workers
    python benchmarks/streamed_weights.py --workers 4 --mb 50

Each line of the result is one JSON object; ``--out FILE`` adds them to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing as mp
import os
import platform
import resource
import shutil
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEADLINE_S = 600.0
FILES = 8


def write_version(directory: Path, mb: int) -> Any:
    import numpy as np

    from rlax_plugin.testing.builders import make_version
    from rlax_plugin.types import TensorSpec

    part = directory / "v0"
    part.mkdir()
    size = mb * 10**6 // FILES
    for number in range(FILES):
        (part / f"w{number}").write_bytes(np.random.default_rng(number).bytes(size))
    return make_version(0, str(part), {"w": TensorSpec((FILES * size,), "uint8", 0)})


def trainer(directory: str, mb: int, streams: int, connection: Connection) -> None:
    """Serves a version, and runs steps from one message to the next, which it answers with them."""
    import jax
    import jax.numpy as jnp

    from rlax_plugin.rpc.doors import Door, listen
    from rlax_plugin.rpc.run_secrets import run_secrets
    from rlax_plugin.weights.parameter_server import ParameterServer

    place = Path(directory)
    secrets = run_secrets(place)
    ready, ended = threading.Event(), asyncio.Event()
    known: dict[str, Any] = {}

    async def serve() -> None:
        parameters = ParameterServer(None, keep=1, lease_s=60, streams=streams)
        door = Door(secrets.callers(), secrets.identity)
        server, known["address"] = listen("127.0.0.1", 0, door, "port")
        parameters.add_to(server)
        await server.start()
        await parameters.publish(write_version(place, mb))
        known.update(loop=asyncio.get_running_loop(), parameters=parameters)
        ready.set()
        await ended.wait()
        await parameters.close()
        await server.stop(None)

    loop = threading.Thread(target=asyncio.run, args=(serve(),))
    loop.start()

    @jax.jit
    def step(w: jax.Array) -> jax.Array:
        for _ in range(8):
            w = jnp.tanh(w @ w)
        return w

    w = jnp.ones((384, 384)) / 384
    step(w).block_until_ready()
    assert ready.wait(DEADLINE_S)
    connection.send(known["address"])
    while connection.recv() == "measure":
        connection.send(None)
        steps_s = []
        before, cpu_s = known["parameters"].streams.sent_bytes, time.process_time()
        while not connection.poll():
            began_s = time.perf_counter()
            step(w).block_until_ready()
            steps_s.append(time.perf_counter() - began_s)
        connection.recv()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found = {
            "step_ms": 1e3 * statistics.median(steps_s),
            "steps": len(steps_s),
            "cpu_s": time.process_time() - cpu_s,
            "sent_mb": (known["parameters"].streams.sent_bytes - before) / 1e6,
            "peak_rss_mb": peak_mb,
        }
        connection.send(found)
    known["loop"].call_soon_threadsafe(ended.set)
    loop.join(DEADLINE_S)


def worker(directory: str, number: int, address: str, connection: Connection) -> None:
    """Answers ``stream`` and ``path`` with the seconds until it had the version."""
    from rlax_plugin.concurrency.threads import on_daemon
    from rlax_plugin.config import RlaxSection
    from rlax_plugin.rpc.run_secrets import run_secrets
    from rlax_plugin.weights.client import ParameterServerClient
    from rlax_plugin.weights.local_copies import local_copies
    from rlax_plugin.weights.verification import Reading

    place, mine = Path(directory), Path(directory, f"worker{number}")
    section = RlaxSection.model_validate(
        {
            "prompt_source": {"name": "none"},
            "rewards": [{"name": "none"}],
            "weights": {"transfer": "stream", "stream_dir": str(mine / "copies")},
            "deadlines": {"weights_s": DEADLINE_S},
        }
    )
    secret = run_secrets(place).of_worker

    async def stream() -> float:
        reading = Reading()
        with local_copies(section) as copies:
            assert copies is not None
            client = ParameterServerClient(address, secret, rpc_s=DEADLINE_S)
            async with client.hold() as held:
                await copies.copy(client, held, reading)
            await client.close()
        return reading.stream_s

    def path() -> float:
        began_s = time.perf_counter()
        shutil.copytree(place / "v0", mine / "copied")
        for file in (mine / "copied").iterdir():
            hashlib.sha256(file.read_bytes()).digest()
        took_s = time.perf_counter() - began_s
        shutil.rmtree(mine / "copied")
        return took_s

    mine.mkdir()
    connection.send("ready")
    while (how := connection.recv()) != "end":
        connection.send(asyncio.run(stream()) if how == "stream" else on_daemon(path, how).result())


def answer(connection: Connection) -> Any:
    assert connection.poll(DEADLINE_S), "no answer"
    return connection.recv()


def measure(server: Connection, workers: list[Connection], how: str, rest_s: float) -> dict:
    """The duration of one download by all workers, and the trainer's figures meanwhile."""
    server.send("measure")
    answer(server)
    began_s = time.perf_counter()
    for one in workers:
        one.send(how)
    seconds = [answer(one) for one in workers]
    took_s = time.perf_counter() - began_s
    if not workers:
        time.sleep(rest_s)
    server.send("stop")
    found = answer(server)
    one_s = {"one_s": statistics.median(seconds)} if seconds else {}
    return {"how": how, "workers": len(workers), "all_s": took_s, **one_s, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--directory", type=Path, help="default: a temporary one")
    given = parser.parse_args()
    spawn = mp.get_context("spawn")
    lines = [{"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version()}]
    with tempfile.TemporaryDirectory(prefix="rlax-streams-", dir=given.directory) as directory:
        server, there = spawn.Pipe()
        arguments = (directory, given.mb, given.streams, there)
        started = [spawn.Process(target=trainer, args=arguments, daemon=True)]
        started[0].start()
        address, workers = answer(server), []
        for number in range(max(given.workers)):
            here, there = spawn.Pipe()
            one = spawn.Process(
                target=worker, args=(directory, number, address, there), daemon=True
            )
            one.start()
            started.append(one)
            answer(here)
            workers.append(here)
        for _ in range(given.repeats):
            lines.append(measure(server, [], "idle", 5.0))
            for count in given.workers:
                for how in ("path", "stream"):
                    lines.append(measure(server, workers[:count], how, 0.0))
                    print(json.dumps(lines[-1]), flush=True)
        server.send("end")
        for one in workers:
            one.send("end")
        for process in started:
            process.join(DEADLINE_S)
    if given.out is not None:
        with given.out.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
