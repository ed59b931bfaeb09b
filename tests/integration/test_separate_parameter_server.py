"""A parameter server in a process of its own, with readers of real checkpoints."""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap

import numpy as np
from parameter_servers import LIMIT_S, client_of, run

from rlax_plugin.errors import WeightsError
from rlax_plugin.rpc.run_secrets import run_secrets
from rlax_plugin.testing.builders import make_version
from rlax_plugin.types import TensorSpec

SERVER = """
    import asyncio, shutil, sys
    from pathlib import Path
    from rlax_plugin.rpc.doors import Door
    from rlax_plugin.rpc.run_secrets import run_secrets
    from rlax_plugin.weights.parameter_server import serve_parameter_server

    class Store:
        delete = staticmethod(shutil.rmtree)

    secrets = run_secrets(Path(sys.argv[1]))
    door = Door(secrets.callers(), secrets.identity)
    asyncio.run(serve_parameter_server("127.0.0.1", 0, door, Store(), 1, 60.0,
        lambda address: print(address, flush=True), index=Path(sys.argv[1]) / "index.json",
        published_in=sys.argv[1]))
"""


def test_nothing_is_deleted_under_two_readers(tmp_path):
    """The server in a process of its own; versions come as fast as they can, one is kept."""
    from rlax_orbax.store import OrbaxStore

    from rlax_plugin.weights.fingerprint import fingerprint_numpy

    last, store = 20, OrbaxStore()
    like = {f"w{i}": np.zeros((64, 64), np.float32) for i in range(8)}

    async def publish(client, number):
        arrays = {name: np.full_like(a, number + i) for i, (name, a) in enumerate(like.items())}
        path = str(tmp_path / f"{number}")
        await asyncio.to_thread(store.save, path, arrays)
        tensors = {
            name: TensorSpec(arrays[name].shape, "float32", int(value))
            for name, value in fingerprint_numpy(arrays).items()
        }
        await client.publish(make_version(number, path, tensors))

    async def read(client, first):
        held = []
        async for newest in client.watch():
            try:
                async with client.acquire(newest.version) as version:
                    loaded = await asyncio.to_thread(store.load, version.paths[0], like)
            except WeightsError as error:
                # Replaced between its announcement and the acquisition; never while it is held.
                assert "requested version" in str(error)
                continue
            prints = fingerprint_numpy(loaded)
            assert {n: int(v) for n, v in prints.items()} == {
                n: t.fingerprint for n, t in version.tensors.items()
            }
            held.append(version.version)
            first.set()
            if held[-1] == last:
                return held

    async def main(address):
        secret = run_secrets(tmp_path).of_trainer
        async with client_of(address, secret) as one, client_of(address, secret) as two:
            started = [asyncio.Event(), asyncio.Event()]
            readers = [
                asyncio.ensure_future(read(client, event))
                for client, event in zip((one, two), started, strict=True)
            ]
            await publish(one, 0)
            for event in started:
                await event.wait()
            for number in range(1, last + 1):
                await publish(one, number)
            return await asyncio.gather(*readers)

    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = server.stdout.readline().strip()
        for held in run(main(address)):
            assert held == sorted(set(held)) and held[0] == 0 and held[-1] == last
            assert len(held) > 2
        server.send_signal(signal.SIGTERM)
        server.wait(LIMIT_S)
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait(LIMIT_S)
        server.stdout.close()
    # keep = 1: all but the newest are gone, and a restarted server would know it.
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [str(last), "index.json", "secrets.json", "worker-token.json"]
    known = json.loads((tmp_path / "index.json").read_text())["versions"]
    assert known[-1]["version"] == last
