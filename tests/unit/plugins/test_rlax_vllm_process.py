"""The process of vLLM's server: how it ends, and what ``rlax check`` says before it starts."""

import asyncio
import errno
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import recorded_vllm
import rlax_vllm
from rlax_vllm import server as vllm_server
from rlax_vllm.checking import check_start, installed
from rlax_vllm.model import Model
from rlax_vllm.options import VllmConfig
from rlax_vllm.server import CALL, START, TOKENS, Server
from sections import section_with
from waiting import eventually, wait_until

from rlax_plugin.api import BuildContext, ConfigError, WorkerError

KEEPER = Path(rlax_vllm.__file__).parent / "keeper.py"
# A server whose child has left its session, as an engine's may.
SERVER = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("ends", ["worker", "server"])
def test_the_server_and_all_its_processes_end_together(ends: str, tmp_path: Path) -> None:
    directory = tmp_path / "sockets"
    directory.mkdir()
    command = [sys.executable, "-P", str(KEEPER), str(directory), sys.executable, "-c", SERVER]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert keeper.stdin is not None and keeper.stdout is not None
    grandchild = psutil.Process(int(keeper.stdout.readline()))
    (server,) = psutil.Process(keeper.pid).children()
    if ends == "worker":
        keeper.stdin.close()  # as the end of the process that holds it does
    else:
        server.kill()
    status = keeper.wait(30)
    assert (status == 0) == (ends == "worker")
    wait_until(lambda: not (server.is_running() or grandchild.is_running()))
    assert not directory.exists()


async def test_a_server_that_ends_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no room for 9 GiB of cache' >&2\nexit 3\n")
    python.chmod(0o755)
    engine = recorded_vllm.make_engine(tmp_path, config=VllmConfig(python=str(python)))
    with pytest.raises(WorkerError, match=r"has ended \(status 3\)\n  no room for 9 GiB of cache"):
        async with asyncio.timeout(30):
            await engine.prepare()
    with pytest.raises(WorkerError, match="has ended"):
        engine.health()
    engine.close()


def checked(section: dict | None = None, **options: object):
    context = BuildContext.outside_run(section_with(**(section or {})))
    return check_start(VllmConfig(**options), context)


@pytest.mark.parametrize(
    ("options", "section", "key", "words"),
    [
        ({}, {}, "engine", "needs either python or url"),
        ({"python": sys.executable, "url": "unix:/x"}, {}, "engine", "needs either python or url"),
        ({"python": "python3"}, {}, "engine.python", "no absolute path"),
        ({"url": "unix:run/vllm"}, {}, "engine.url", "absolute path"),
        ({"url": "http://10.0.0.7:8000"}, {}, "engine.url", "must not be reached from other"),
        ({"url": "http://0.0.0.0:8000"}, {}, "engine.url", "must not be reached from other"),
        ({"url": "unix:/x", "arguments": {"seed": 1}}, {}, "arguments", "has no effect"),
        (
            {"url": "unix:/x"},
            {"launcher": {"name": "local", "workers": 2}},
            "engine.url",
            "one set of weights, and rlax.launcher.workers is 2",
        ),
        ({"python": sys.executable}, {"rollouts": {"top_p": 0.9}}, "top_p", "must be 1"),
        ({"python": sys.executable}, {"rollouts": {"top_k": 9}}, "top_k", "must be 0"),
        ({"python": sys.executable}, {"deterministic": True}, "deterministic", "jetstream"),
        (
            {"python": sys.executable},
            {"rollouts": {"temperature": 0.005}},
            "rollouts.temperature",
            "takes 0, or from 0.01 on",
        ),
        (
            {"python": sys.executable},
            {"rollouts": {"temperature": {"steps": 9, "from": 1, "to": 0.002}}},
            "rollouts.temperature",
            "takes 0, or from 0.01 on",
        ),
        (
            {"python": sys.executable},
            {"evaluation": {"temperature": 0.009}},
            "evaluation.temperature",
            "takes 0, or from 0.01 on",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused(
    options: dict, section: dict, key: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        checked(section, **options)
    assert error.value.key.endswith(key)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("port", "port is set by this plug-in"),
        ("model", "model is set by this plug-in"),
        ("max-num-seqs", "max-num-seqs is set"),
        ("max-num-se", "max-num-seqs is set"),  # which argparse completes
        ("no-enable-scale-out", "enable-scale-out is set"),
        ("dtype.x", "dtype is set"),
        ("max_num_seqs", "no name as vLLM writes it"),
        ("-O", "no name as vLLM writes it"),
        ("seed=1 --x", "no name as vLLM writes it"),
        ("data-parallel-size", "use more workers"),
    ],
)
def test_arguments_of_the_server_that_are_the_plug_ins_are_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        checked(python=sys.executable, arguments={name: 1})
    assert error.value.key == f"rlax.rollouts.engine.arguments.{name}"


def test_the_temperatures_that_vllm_keeps_pass() -> None:
    for temperature in (0.01, 1.0, {"steps": 9, "from": 1, "to": 0.01}):
        checked({"rollouts": {"temperature": temperature}}, python=sys.executable)
    checked({"evaluation": {"temperature": 0.0}}, python=sys.executable)


def test_what_other_users_can_reach_is_warned_of(tmp_path: Path) -> None:
    assert checked(python=sys.executable).warnings == []
    for mode, count in ((0o700, 0), (0o750, 1)):
        tmp_path.chmod(mode)
        assert len(checked(url=f"unix:{tmp_path}/api").warnings) == count
    assert len(checked(url=f"unix:{tmp_path}/none/api").warnings) == 1
    ((key, said),) = checked(url="http://127.0.0.1:8000").warnings
    assert key == "rlax.rollouts.engine.url" and "every user of this machine" in said
    for name in ("tensor-parallel-size", "pipeline-parallel-size"):
        ((key, said),) = checked(python=sys.executable, arguments={name: 2}).warnings
        assert key.endswith(name) and "ports" in said


def test_a_python_without_vllm_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"has no vLLM: .*'vllm'"):
        installed(sys.executable)


async def test_nothing_is_left_if_the_parent_of_the_server_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    engine = recorded_vllm.make_engine(tmp_path, config=VllmConfig(python=str(python)))
    preparing = asyncio.ensure_future(engine.prepare())
    own = psutil.Process()

    def started() -> list[psutil.Process]:
        found = []
        for process in own.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found += [process] if process.name() == "sleep" else []
        return found

    (server,) = await eventually(started, "the server")
    parent = server.parent()
    assert parent is not None and parent != own
    parent.kill()
    with pytest.raises(WorkerError, match="has ended"):
        await preparing
    await eventually(lambda: not server.is_running(), "its end")
    assert len(list(tmp_path.glob("rlax-vllm-*"))) == 1
    engine.close()
    assert not list(tmp_path.glob("rlax-vllm-*"))


async def test_nothing_is_left_if_the_model_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write(model: Model, directory: Path) -> None:
        directory.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Model, "write", write)
    engine = recorded_vllm.make_engine(tmp_path, config=VllmConfig(python=sys.executable))
    with pytest.raises(OSError, match="No space left"):
        await engine.prepare()
    assert not list(tmp_path.glob("rlax-vllm-*"))


async def test_a_connection_that_the_server_may_be_closing_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vllm_server, "_IDLE_S", 0.0)
    answered = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        answered += 1
        await reader.read(1)  # of the next request, which meets the end of the connection
        writer.close()

    listening = await asyncio.start_unix_server(answer_once, tmp_path / "api")
    server = Server(
        python="",
        url=f"unix:{tmp_path / 'api'}",
        directory="",
        arguments=[],
        vocabulary=1,
        connections=1,
        limits=dict.fromkeys((CALL, TOKENS, START), 30.0),
        on_end=print,
    )
    for count in (1, 2):
        assert await server.post("/reset_prefix_cache", {}) == {}
        assert answered == count
    listening.close()
