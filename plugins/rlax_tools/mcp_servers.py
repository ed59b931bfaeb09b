"""Servers of the Model Context Protocol: started by a command, spoken to over its pipes.

https://modelcontextprotocol.io; the client is that of the package ``mcp``, from 2.3 on.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic_core import to_json

from rlax_plugin.api import CallError, ConfigError, Ending, RlaxError, Section, python_command
from rlax_tools.tool import Tool

if TYPE_CHECKING:
    from mcp import ClientSession

_KEY = "rlax.environment.mcp"
_INVALID_PARAMS, _CONNECTION_CLOSED = -32602, -32000  # of JSON-RPC, and of the client
_END_S = 10.0  # the client closes the server's input, then terminates, then kills it
_PING_S = 5.0
_MOST_PAGES = 100
_SPARE_DEPTH = 150  # servers leave unanswered what they cannot read; pydantic's reads 200 levels
# A server that hangs would outlive a reward process that is killed: PR_SET_PDEATHSIG is 1.
_WITH_PARENT = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


class ServerConfig(Section):
    """A server as a child process."""

    command: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description="program and arguments of the server"
    )
    life: Literal["episode", "process"] = Field(
        default="episode",
        description="episode: each has a server of its own, from its first call on. process: one "
        "server for all episodes of a reward process, for tools without state",
    )


class ServerFailedError(RlaxError):
    """A server has ended, or did not answer as the protocol says."""

    ending = Ending.SERVER_FAILED


def check_installed() -> None:
    """Checks that the client is there.

    Raises:
      ConfigError: it is not.
    """
    if importlib.util.find_spec("mcp") is None:
        reason = "needs the package mcp, which is not installed: pip install '.[mcp]' in a checkout"
        raise ConfigError(_KEY, None, reason)


class McpServer:
    """One server of the config, as often as it is started.

    Args:
      startup_s: limit for starting it.
    """

    def __init__(self, name: str, config: ServerConfig, startup_s: float):
        self._name, self._config, self._startup_s = name, config, startup_s
        self._described: Sequence[Mapping[str, Any]] | None = None
        self._shared: _Connection | None = None
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()  # of servers that have been told to

    async def listed(self) -> None:
        """Starts the server to ask for its tools, the first time.

        Raises:
          ServerFailedError: it did not say them.
        """
        if self._described is not None:
            return
        connection = await self._started()
        try:
            self._described = await connection.tools(self._startup_s)
        finally:
            if self._config.life == "process" and self._described is not None:
                self._shared = connection
            else:
                await connection.close()

    @asynccontextmanager
    async def of_episode(self) -> AsyncIterator[Sequence[Tool]]:
        """Offers the tools to one episode; ends the server that it alone has."""
        own: list[_Connection] = []

        async def connection() -> _Connection:
            if self._config.life == "process":
                return await self._alive()
            if not own:
                own.append(await self._started())
            return own[0]

        def tool(described: Mapping[str, Any]) -> Tool:
            name = described["function"]["name"]

            async def call(arguments: Mapping[str, Any], limit_s: float) -> str:
                return await (await connection()).call(name, arguments)

            return Tool(described, call, ready=connection)

        try:
            yield [tool(one) for one in self._described or ()]
        except asyncio.CancelledError:  # whoever cancels does not wait as long as a server may take
            while own:
                self._end(own.pop())
            raise
        finally:
            for one in own:
                await one.close()

    async def _alive(self) -> _Connection:
        """Returns the server of all episodes; starts it again if it has ended, or hangs."""
        async with self._starting:
            if self._shared is None or not await self._shared.answers():
                if self._shared is not None:
                    self._end(self._shared)
                self._shared = None
                self._shared = await self._started()
            return self._shared

    def _end(self, connection: _Connection) -> None:
        """Begins to end a server, for which nobody waits but ``close``."""
        connection.end()
        self._ending.add(connection.task)
        connection.task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends the server of all episodes, and waits for those that are ending."""
        if self._shared is not None:
            self._end(self._shared)
        if self._ending:
            await asyncio.wait(self._ending, timeout=_END_S)

    async def _started(self) -> _Connection:
        name = f"the MCP server {self._name!r} ({_KEY}.{self._name}.command)"
        connection = _Connection(name, self._config.command)
        try:
            await connection.ready(self._startup_s)
        except BaseException:
            await connection.close()
            raise
        return connection


class _Connection:
    """A server's process. One task opens and closes it, as the client's scopes want it.

    If that is cancelled while it closes a server that is held, it waits for the server for ever.

    Attributes:
      task: ends once the process has ended.
    """

    def __init__(self, name: str, command: Sequence[str]):
        self._name, self._command = name, command
        self._doubted = False  # a call has failed, for which the server may be to blame
        self._over = asyncio.Event()
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        from mcp import ClientSession, StdioServerParameters, stdio_client

        # Of this process's variables the client passes on those that a program needs, and no keys.
        program, *arguments = python_command("-ISc", _WITH_PARENT, *self._command)
        server = StdioServerParameters(command=program, args=arguments)
        try:
            if shutil.which(self._command[0]) is None:
                raise FileNotFoundError(f"there is no program {self._command[0]!r}")
            async with (
                stdio_client(server, errlog=sys.stderr) as streams,
                ClientSession(*streams) as session,
            ):
                await session.initialize()
                self._session.set_result(session)
                await self._over.wait()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            if self._session.done():
                raise
            self._session.set_exception(self._failed(error))

    def _failed(self, error: BaseException) -> ServerFailedError:
        self._doubted = True
        while isinstance(error, BaseExceptionGroup):  # of the client's tasks
            error = error.exceptions[0]
        failure = ServerFailedError(f"{self._name} failed: {error}")
        failure.__cause__ = error
        return failure

    async def ready(self, limit_s: float) -> None:
        """Waits until it has introduced itself.

        Raises:
          ServerFailedError: it has not.
        """
        done, _ = await asyncio.wait([self._session], timeout=limit_s)
        if not done:
            reason = f"it was not ready within rlax.deadlines.startup_s = {limit_s:g} s"
            raise self._failed(TimeoutError(reason))
        self._session.result()

    async def tools(self, limit_s: float) -> list[dict[str, Any]]:
        """Returns the descriptions of its tools, in OpenAI's form.

        Raises:
          ServerFailedError: it does not list them.
        """
        from mcp.types import PaginatedRequestParams

        found, page = [], None
        try:
            async with asyncio.timeout(limit_s):
                for _ in range(_MOST_PAGES):
                    listed = await self._session.result().list_tools(params=page)
                    found += listed.tools
                    if listed.next_cursor is None:
                        break
                    page = PaginatedRequestParams(cursor=listed.next_cursor)
                else:
                    raise ValueError(f"it lists its tools on more than {_MOST_PAGES} pages")
        except Exception as error:
            raise self._failed(error) from error
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in found
        ]

    async def answers(self) -> bool:
        """True unless a call has failed and it does not answer a ping, either."""
        from mcp import MCPError

        if self._doubted:
            try:
                async with asyncio.timeout(_PING_S):
                    await self._session.result().send_ping()
            except TimeoutError:
                return False
            except MCPError as error:  # an error of another kind is an answer
                if error.code == _CONNECTION_CLOSED:
                    return False
            self._doubted = False
        return True

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Returns the texts of a result.

        Raises:
          CallError: the server says that the tool has failed, or that the arguments are wrong; or
            they cannot be sent.
          ServerFailedError: it has ended, or its answer is not of the protocol.
        """
        from mcp import MCPError

        deep: Any = arguments
        for _ in range(_SPARE_DEPTH):
            deep = [deep]
        try:
            to_json(deep)  # a message that cannot be written would end the connection
        except ValueError as error:
            raise CallError(f"the arguments cannot be sent: {error}") from None
        try:
            result = await self._session.result().call_tool(name, dict(arguments))
        except asyncio.CancelledError:  # perhaps after call_s
            self._doubted = True
            raise
        except MCPError as error:
            if error.code == _INVALID_PARAMS:
                raise CallError(error.message) from None
            raise self._failed(error) from error
        except Exception as error:
            raise self._failed(error) from error
        text = "\n".join(
            block.text if block.type == "text" else f"[{block.type} is left out]"
            for block in result.content
        )
        if result.is_error:
            raise CallError(text)
        return text

    def end(self) -> None:
        """Begins to end the process, and all that it has started in its group."""
        self._over.set()
        if not self._session.done():
            self.task.cancel()
        self.task.add_done_callback(_told)

    async def close(self) -> None:
        """Ends the process; see ``end``."""
        self.end()
        await asyncio.wait([self.task], timeout=_END_S)


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # of a server that had ended before; its calls have told it
