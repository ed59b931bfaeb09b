"""Real servers of the Model Context Protocol: their tools, their errors, their ends."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rlax_tools import mcp_servers
from rlax_tools.environment import ToolsConfig, check_start
from rlax_tools.mcp_servers import McpServer, ServerConfig, ServerFailedError
from rlax_tools.tool import Tool

from rlax_plugin.api import CallError, ConfigError, Ending

needs_mcp = pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="needs mcp")
SERVER = """
import asyncio, os, signal, sys, time
from mcp import MCPError
from mcp.server import MCPServer

server, calls = MCPServer("counts"), []

@server.tool()
def count(step: int = 1) -> str:
    "Counts on."
    calls.append(step)
    return f"{os.getpid()} {sum(calls)}"

@server.tool()
def divided(a: int, b: int) -> float:
    "Divides."
    return a / b

@server.tool()
def dies() -> str:
    "Ends the server."
    os._exit(3)

@server.tool()
async def blocks() -> str:
    "Holds the server."
    time.sleep(1000)

@server.tool()
def refuses() -> str:
    "Answers with an error of the protocol."
    raise MCPError(-32603, "not now")

@server.tool()
def echo(value: dict) -> str:
    "Says that it has it."
    return "here"

@server.tool()
async def hangs() -> str:
    "Never returns."
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        await asyncio.sleep(1)

print("it starts", file=sys.stderr)
server.run()
"""


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "server.py").write_text(SERVER)
    return sys.executable, str(tmp_path / "server.py")


@asynccontextmanager
async def served(command: tuple[str, ...], **options: str) -> AsyncIterator[McpServer]:
    config = ServerConfig.model_validate({"command": list(command), **options})
    server = McpServer("counts", config, 60.0)
    await server.listed()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def episode(server: McpServer) -> AsyncIterator[dict[str, Tool]]:
    async with server.of_episode() as tools:
        yield {tool.name: tool for tool in tools}


async def count(tools: dict[str, Tool]) -> tuple[int, int]:
    """The process of the server, and its count."""
    pid, number = (await tools["count"].call({}, 0)).split()
    return int(pid), int(number)


@needs_mcp
async def test_schemas_are_passed_through_and_each_episode_has_a_server(
    command: tuple[str, ...],
) -> None:
    async with served(command) as server:
        async with episode(server) as one, episode(server) as two:
            described = one["divided"].description
            assert described["type"] == "function"
            assert described["function"]["description"] == "Divides."
            assert described["function"]["parameters"]["required"] == ["a", "b"]
            first, again, other = await count(one), await count(one), await count(two)
            assert [first[1], again[1], other[1]] == [1, 2, 1] and first[0] != other[0]
            assert json.loads(await one["divided"].call({"a": 3, "b": 2}, 0)) == 1.5
            for wrong in ({"a": 1, "b": 0}, {"a": "x", "b": 1}, {"a": 1}):
                with pytest.raises(CallError):
                    await one["divided"].call(wrong, 0)
            with pytest.raises(ServerFailedError) as raised:  # only its own episode ends
                await one["dies"].call({}, 0)
            assert raised.value.ending == Ending.SERVER_FAILED
            assert (await count(two))[1] == 2
        assert not psutil.pid_exists(first[0]) and not psutil.pid_exists(other[0])


@needs_mcp
async def test_one_server_for_all_episodes_is_started_again_after_its_end(
    command: tuple[str, ...],
) -> None:
    async with (
        served(command, life="process") as server,
        episode(server) as one,
        episode(server) as two,
    ):
        assert [(await count(tools))[1] for tools in (one, two, one)] == [1, 2, 3]
        with pytest.raises(ServerFailedError):
            await one["dies"].call({}, 0)
        pid, number = await count(two)
        assert number == 1
    assert not psutil.pid_exists(pid)


@needs_mcp
async def test_what_one_episode_calls_does_not_end_the_server_of_all(
    command: tuple[str, ...],
) -> None:
    async with (
        served(command, life="process") as server,
        episode(server) as one,
        episode(server) as two,
    ):
        pid, _ = await count(one)
        deep: dict[str, Any] = {}
        for _ in range(210):  # can be written, but not read
            deep = {"a": deep}
        for value in ({"a": "\ud800"}, deep):
            with pytest.raises(CallError, match="cannot be sent"):
                await one["echo"].call({"value": value}, 0)
        with pytest.raises(ServerFailedError, match="not now"):
            await one["refuses"].call({}, 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await one["hangs"].call({}, 0)
        assert await count(two) == (pid, 2)


@needs_mcp
async def test_a_server_that_is_held_is_started_again(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_servers, "_PING_S", 0.2)
    async with served(command, life="process") as server, episode(server) as tools:
        pid, _ = await count(tools)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await tools["blocks"].call({}, 0)
        again, number = await count(tools)
        assert again != pid and number == 1


@needs_mcp
def test_a_server_that_is_held_ends_with_its_process(command: tuple[str, ...]) -> None:
    program = f"""
import asyncio
from rlax_tools.mcp_servers import McpServer, ServerConfig

async def main():
    server = McpServer("counts", ServerConfig(command={command}, life="process"), 60.0)
    await server.listed()
    async with server.of_episode() as tools:
        by_name = {{tool.name: tool for tool in tools}}
        print(await by_name["count"].call({{}}, 0), flush=True)
        await by_name["blocks"].call({{}}, 0)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        server = psutil.Process(int(holder.stdout.readline().split()[0]))
        holder.kill()
    server.wait(60)


@needs_mcp
async def test_a_server_that_hangs_and_ignores_signals_ends_with_its_episode(
    command: tuple[str, ...],
) -> None:
    async with served(command) as server, episode(server) as tools:
        pid, _ = await count(tools)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await tools["hangs"].call({}, 0)
    assert not psutil.pid_exists(pid)


@needs_mcp
async def test_a_cancelled_episode_does_not_wait_for_the_end_of_its_server(
    command: tuple[str, ...],
) -> None:
    pids: list[int] = []

    async def play(server: McpServer) -> None:
        async with episode(server) as tools:
            pids.append((await count(tools))[0])
            await tools["blocks"].call({}, 0)

    async with served(command) as server:
        playing = asyncio.create_task(play(server))
        while not pids:
            await asyncio.sleep(0.01)
        holder = psutil.Process(pids[0])
        playing.cancel()
        await asyncio.wait([playing])
        assert holder.is_running()  # it is given 2 s to end by itself
        await asyncio.to_thread(holder.wait, 60)


@needs_mcp
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("no-such-program",), "there is no program 'no-such-program'"),
        (
            (sys.executable, "-c", "print('hello')"),
            r"server 'counts' \(rlax.environment.mcp.counts.command\) failed: Connection closed",
        ),
    ],
)
async def test_a_program_that_is_no_server_is_named(command: tuple[str, ...], message: str) -> None:
    with pytest.raises(ServerFailedError, match=message):
        async with served(command):
            pass


def test_the_missing_package_is_named_before_anything_starts(monkeypatch) -> None:
    monkeypatch.setattr(mcp_servers.importlib.util, "find_spec", lambda name: None)
    config = ToolsConfig.model_validate({"mcp": {"files": {"command": ["x"]}}})
    with pytest.raises(ConfigError, match=r"needs the package mcp.*pip install '.\[mcp\]'"):
        check_start(config, None)  # type: ignore[arg-type]
