"""The engine ``vllm`` with a real server; they are skipped where there is none."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from other_users import BECOMES, USER, need_another_user
from safetensors.numpy import load_file, save_file
from vllm_versions import NEW, PROMPT, TOKENS, VOCAB, TinyModel, needs_vllm
from waiting import eventually, wait_until

from rlax_plugin.api import Key, Request, SamplingParams, WeightsError
from rlax_plugin.base.errors import WeightsMismatchError
from rlax_plugin.base.types import Sampled
from rlax_plugin.weights.verification import take_version

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), needs_vllm]
START_S = 600.0

STARTING = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from vllm_versions import TinyModel
from rlax_vllm.model import model_of, server_arguments
from rlax_vllm.options import VllmConfig
from rlax_vllm.server import Server
directory = sys.argv[1]
model, config = TinyModel(), VllmConfig(python=__import__("os").environ["RLAX_VLLM_PYTHON"])
described = model_of(config, model.context())
described.write(Path(directory) / "model")
arguments = server_arguments(config, model.context(), described, directory + "/model")
server = Server(
    python=config.python, url="", directory=directory, arguments=arguments, vocabulary=64,
    connections=1, limits=dict.fromkeys(
        ("rlax.deadlines.weights_s", "rlax.deadlines.batch_s", "rlax.deadlines.startup_s"), 60.0
    ), on_end=print,
)
print("started", flush=True)
time.sleep(100000)
"""

# What another user of the machine tries.
ATTACK = """
import json, os, socket, sys
order, reached = json.load(sys.stdin), []
for path in order["paths"]:
    with socket.socket(socket.AF_UNIX) as own:
        for attempt in (own.connect, os.listdir, lambda path: open(path, "rb").read(1)):
            try:
                attempt(path)
                reached.append(path)
            except OSError:
                pass
for port in order["ports"]:
    with socket.create_connection(("127.0.0.1", port), 10) as own:
        try:
            own.sendall(bytes(range(256)) * 4096)
        except OSError:
            pass
sees = os.path.exists(os.path.dirname(order["paths"][0]) + "/all")
print(json.dumps({"user": os.getuid(), "sees": sees, "reached": reached}))
"""


class Starter:
    """A process, as a worker is, that has started vLLM's server in a directory."""

    def __init__(self, directory: Path):
        self.directory = directory
        directory.mkdir(mode=0o700)
        here = Path(__file__).parent
        paths = [str(here), str(here.parents[1]), str(here.parents[1] / "plugins")]
        command = [sys.executable, "-P", "-c", STARTING, str(directory), *paths]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"started\n"
        self.descendants: set[psutil.Process] = set()

    def up(self) -> bool:
        transport = httpx.HTTPTransport(uds=str(self.directory / "api"))
        try:
            with httpx.Client(transport=transport, base_url="http://vllm", timeout=60.0) as http:
                return http.get("/health").status_code == 200
        except httpx.HTTPError:
            return False
        finally:
            self.descendants |= set(psutil.Process(self.process.pid).children(recursive=True))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def left(self) -> list[psutil.Process]:
        return [p for p in self.descendants if p.is_running() and p.status() != "zombie"]


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    home = Path(tempfile.mkdtemp(prefix="rlax-v-"))
    home.chmod(0o755)  # every user may enter it, as the place where a worker makes the server's
    (home / "all").touch()
    starter = Starter(home / "s")
    try:
        wait_until(starter.up, "the server is up", limit_s=START_S)
        yield starter
    finally:
        starter.close()
        shutil.rmtree(home, ignore_errors=True)  # the keeper deletes its part


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return TinyModel()


def engine_of(model: TinyModel, starter: Starter, mode: str = "continue"):
    return model.engine(mode, python="", url=f"unix:{starter.directory}/api")


def requests(count: int, **sampling: object) -> list[Request]:
    rng = np.random.default_rng(0)
    params = SamplingParams(temperature=1.0, max_new_tokens=NEW)
    return [
        Request(
            Key("train", group),
            1,
            rng.integers(0, VOCAB, PROMPT - group % 5).astype(np.int32),
            tuple(int(seed) for seed in rng.integers(0, 2**64, 4, dtype=np.uint64)),
            replace(params, **sampling),
        )
        for group in range(count)
    ]


async def generated(engine, asked: list[Request]) -> dict[int, list[list[Sampled]]]:
    replies: dict[int, list[list[Sampled]]] = {}

    def on_reply(key: Key, samples) -> None:
        replies.setdefault(key.group, []).append(list(samples))

    await engine.generate(asked, on_reply)
    return replies


def errors(model: TinyModel, request: Request, sample: Sampled, temperature=1.0) -> np.ndarray:
    """|log-prob - the trainer's|, with the weights that each token's version names."""
    tokens, length = np.concatenate([request.context, sample.tokens]), len(request.context)
    expected = np.zeros(len(sample.tokens))
    for number in set(sample.versions.tolist()):
        scores = model.logprobs(number, tokens, temperature)[length - 1 :]
        expected = np.where(sample.versions == number, scores, expected)
    return np.abs(expected - sample.logprobs)


async def test_log_probs_are_the_trainers(
    model: TinyModel, starter: Starter, tmp_path: Path
) -> None:
    engine = engine_of(model, starter)
    await take_version(engine, model.version(tmp_path, 1, 1))
    asked = requests(13)
    replies = await generated(engine, asked)
    found = np.concatenate(
        [errors(model, one, s) for one in asked for s in replies[one.key.group][-1]]
    )
    assert found.size == 13 * 4 * NEW > 2000
    assert np.percentile(found, 95) < 1e-5 and found.max() < 1e-4
    for temperature in (0.5, 0.0):
        (one,) = requests(1, temperature=temperature)
        for sample in (await generated(engine, [one]))[0][-1]:
            assert errors(model, one, sample, temperature or 1.0).max() < 1e-4
    # The same seed in other company.
    alone = replace(asked[5], seeds=asked[5].seeds[2:3])
    (sample,) = (await generated(engine, [alone]))[5][-1]
    among = replies[5][-1][2]
    assert sample.tokens.tolist() == among.tokens.tolist()
    assert np.abs(sample.logprobs - among.logprobs).max() < 1e-5
    # Stop ids and limits.
    stop = int(among.tokens[6])
    sampling = replace(alone.sampling, stop_ids=(stop,), max_new_tokens=30)
    (stopped,) = (await generated(engine, [replace(alone, sampling=sampling)]))[5][-1]
    place = among.tokens.tolist().index(stop)
    assert (stopped.finish, stopped.tokens.tolist()) == ("stop", among.tokens[: place + 1].tolist())
    sampling = replace(alone.sampling, max_new_tokens=5)
    (short,) = (await generated(engine, [replace(alone, sampling=sampling)]))[5][-1]
    assert (short.finish, short.tokens.tolist()) == ("length", among.tokens[:5].tolist())


async def test_samples_go_on_across_new_weights(
    model: TinyModel, starter: Starter, tmp_path: Path
) -> None:
    engine = engine_of(model, starter)
    await take_version(engine, model.version(tmp_path, 1, 1))
    asked, versions = requests(12), set()
    for new in range(2, 12):  # on a busy machine all samples at the server may have just ended
        loaded = await engine.load(model.version(tmp_path, new, new))
        before = engine.health()["tokens_total"]
        running = asyncio.ensure_future(generated(engine, asked))
        await eventually(lambda least=before: engine.health()["tokens_total"] > least)
        scored = await engine.score(TOKENS, loaded)  # which switches
        assert np.abs(scored - model.logprobs(new, TOKENS)).max() < 1e-4
        await engine.use(loaded)
        replies = await running
        for one in asked:
            for sample in replies[one.key.group][-1]:
                assert len(sample.tokens) == NEW
                assert errors(model, one, sample).max() < 1e-4
                assert (np.diff(sample.versions) >= 0).all()
                versions.add(tuple(sorted(set(sample.versions.tolist()))))
        if (new - 1, new) in versions:
            break
    assert {(new - 1, new), (new,)} <= versions
    assert engine.give_up(set(), 0) == {}


async def test_wrong_weights_are_refused(
    model: TinyModel, starter: Starter, tmp_path: Path
) -> None:
    engine = engine_of(model, starter)
    await take_version(engine, model.version(tmp_path, 1, 1))
    right = model.version(tmp_path, 2, 2)
    (part,) = right.parts
    tensors = load_file(Path(part.path) / "model.safetensors")
    name = min(tensors)

    def wrong(what: str):
        changed = dict(tensors)
        if what == "missing":
            del changed[name]
        elif what == "extra":
            changed["lm_head.bias"] = tensors[name]
        elif what == "misshapen":
            changed[name] = tensors[name].reshape(-1)
        elif what == "another dtype":
            changed[name] = tensors[name].astype(np.float16)
        elif what == "other bytes":
            changed[name] = tensors[name] + np.float32(1e-3)
        path = tmp_path / what
        path.mkdir()
        save_file(changed, path / "model.safetensors")
        if what == "truncated":
            os.truncate(path / "model.safetensors", 5000)
        return replace(right, parts=(replace(part, path=str(path)),))

    for what in ("missing", "extra", "misshapen", "another dtype", "truncated", "other bytes"):
        with pytest.raises(WeightsError):
            await take_version(engine, wrong(what))
        assert engine.version == 1
    old = replace(model.version(tmp_path, 3, 3), canary=right.canary)  # other weights than proved
    with pytest.raises(WeightsMismatchError, match="canary"):
        await take_version(engine, old)
    (one,) = requests(1)
    for sample in (await generated(engine, [one]))[0][-1]:
        assert set(sample.versions.tolist()) == {1}
        assert errors(model, one, sample).max() < 1e-4  # with the weights before
    assert np.abs(await engine.score(TOKENS) - model.logprobs(1, TOKENS)).max() < 1e-4


def test_another_user_reaches_none_of_the_servers_sockets(starter: Starter) -> None:
    need_another_user()
    assert starter.directory.stat().st_mode & 0o777 == 0o700
    assert starter.up()
    alive = starter.left()
    assert len(alive) >= 3
    ports = [(p.name(), c) for p in alive for c in p.net_connections("inet")]
    # Those of PyTorch's gloo, which a single worker process sends nothing to.
    assert {(name, c.laddr.ip, c.status) for name, c in ports} <= {
        ("VLLM::Worker", "127.0.0.1", psutil.CONN_LISTEN)
    }
    sockets = [c.laddr for p in alive for c in p.net_connections("unix") if c.laddr]
    assert sockets and all(Path(one).is_relative_to(starter.directory) for one in sockets)
    paths = [str(starter.directory), *sockets, *(f"/proc/{p.pid}/environ" for p in alive)]
    maps = {m.path for p in alive for m in p.memory_maps() if m.path.startswith("/dev/shm/")}
    order = {"paths": paths + sorted(maps), "ports": sorted({c.laddr.port for _, c in ports})}
    command = (*BECOMES, "-c", ATTACK)
    done = subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, cwd="/", timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"user": USER, "sees": True, "reached": []}
    assert starter.up() and starter.left() == alive  # what he sent to the ports ended nothing


@pytest.mark.parametrize("victim", ["worker", "server", "core"])
def test_all_ends_with_the_worker_the_server_or_its_core(victim: str, tmp_path: Path) -> None:
    starter = Starter(tmp_path / "s")
    try:
        wait_until(starter.up, "the server is up", limit_s=START_S)
        (keeper,) = psutil.Process(starter.process.pid).children()
        (server,) = keeper.children()
        (core,) = (p for p in server.children() if "EngineCore" in " ".join(p.cmdline()))
        {
            "worker": psutil.Process(starter.process.pid),
            "server": server,
            "core": core,
        }[victim].kill()
        wait_until(lambda: not starter.left(), "all ended", limit_s=60.0)
        assert not starter.directory.exists()
    finally:
        starter.close()
