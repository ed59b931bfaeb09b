"""Passes connections from a listening socket on to a port of this machine.

The socket may be in another network namespace, whose processes then reach this port and no other.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

_CONNECTIONS = 64  # of one forwarder at a time; further ones are closed
_PIECE = 1 << 16  # bytes


class Forwarder:
    """Passes connections on until it is closed; see ``started``.

    Attributes:
      failed: True once the port could not be reached.
    """

    def __init__(self, host: str, port: int):
        self._host, self._port, self.failed = host, port, False
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @classmethod
    async def started(cls, listener: socket.socket, host: str, port: int) -> Forwarder:
        """Returns one that accepts from ``listener``, and closes it in the end."""
        forwarder = cls(host, port)
        forwarder._server = await asyncio.start_server(forwarder._accepted, sock=listener)
        return forwarder

    def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) < _CONNECTIONS:
                self._connections.add(task)
                await self._connected(reader, writer)
        except asyncio.CancelledError:
            pass  # by ``close``; asyncio would log it as an error
        finally:
            self._connections.discard(task)
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, ours = await asyncio.open_connection(self._host, self._port)
        except OSError:
            self.failed = True
            return  # the client sees a connection that is closed
        asking = asyncio.ensure_future(_pass_on(reader, ours))
        try:
            await _pass_on(theirs, writer)  # what the client asks afterwards nobody would answer
        finally:
            asking.cancel()
            ours.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # one side has gone
        while data := await source.read(_PIECE):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        target.write_eof()
