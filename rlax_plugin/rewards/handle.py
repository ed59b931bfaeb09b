"""Starts, ends and sends lines to a reward process from the trainer's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.liveness.marks import forget
from rlax_plugin.processes.python import python_command
from rlax_plugin.rewards.forms import Needs
from rlax_plugin.rewards.messages import line
from rlax_plugin.rewards.output import RewardOutput
from rlax_plugin.rewards.process_tree import kill_tree
from rlax_plugin.rewards.witness import Witness, shared

_LONGEST = 1 << 26  # bytes of a line; each job has a bound of its own below that
_END_S = 10.0  # until a process that was killed is gone
_HOW_S = 5.0  # until one that sends nothing more has ended, if it does
NO_ANSWER = "sent something that is not an answer"


class KilledError(RlaxError):
    """A signal has ended a process: it crashed, or was killed from outside."""


class Lines(asyncio.Protocol):
    """Receives lines and the end of the connection.

    Attributes:
      take: called with each line.
      ended: called once, when there are no more lines or one is too long.
      closed: True once the connection has ended.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._transport: asyncio.Transport | None = None
        self.take: Callable[[bytes], None] = lambda one: None
        self.ended: Callable[[], None] = lambda: None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if b"\n" not in data:
            if len(self._rest) > _LONGEST and self._transport is not None:
                self._transport.abort()
            return
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        for one in lines:
            self.take(bytes(one))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.ended()


class RewardProcess:
    """One reward process. It is started again after each ``end``.

    Attributes:
      lines: the lines it sends.
      needs: requirements of its rewards.
      witness: shared memory that names its current job.
    """

    witness: Witness

    def __init__(self, hello: dict[str, Any], output: RewardOutput, startup_s: float):
        self._hello, self._output, self._startup_s = hello, output, startup_s
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Task[None] | None = None
        self.lines = Lines()
        self.needs = Needs()

    @property
    def pid(self) -> int:
        """Its process id; 0 while there is none."""
        process = self._process  # read once: another thread may ask
        return 0 if process is None else process.pid

    async def start(self) -> None:
        """Starts the process, after ending any earlier one.

        Raises:
          DeadlineError: it took too long.
          KilledError: a signal ended it before it was ready.
          RlaxError: it ended by itself before it was ready.
        """
        self.end()
        ours, theirs = socket.socketpair()
        with theirs, shared() as memory:
            self.witness = Witness(memory.fileno())
            descriptors = theirs.fileno(), memory.fileno()
            process = self._process = await asyncio.create_subprocess_exec(
                *python_command("-m", "rlax_plugin.rewards.reward_process", *map(str, descriptors)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._output.descriptor,
                stderr=self._output.descriptor,
                pass_fds=descriptors,
                start_new_session=True,  # a Ctrl-C is the controller's to handle
            )
        self._ended = asyncio.ensure_future(
            self._end_with_it(process, Path(self._hello["run_dir"]))
        )
        self.lines = lines = Lines()
        first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(one: bytes) -> None:
            if not first.done():
                first.set_result(one)

        def ended() -> None:
            first.cancel()

        lines.take, lines.ended = take, ended
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: lines, sock=ours)
        self.send(line(self._hello))
        try:
            await asyncio.wait({first}, timeout=self._startup_s)
            if not first.done():
                raise DeadlineError(
                    "starting a reward process", self._startup_s, "rlax.deadlines.startup_s"
                )
            self.needs = await self._ready(first)
        except BaseException:
            self.end()
            raise

    async def _ready(self, first: asyncio.Future[bytes]) -> Needs:
        how, kind = NO_ANSWER, RlaxError
        if first.cancelled():
            process = self._process
            how = await self.how_it_ended()
            if process is not None and (process.returncode or 0) < 0:
                kind = KilledError
        else:
            with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
                said = json.loads(first.result())
                return Needs(*(bool(said[name]) for name in ("group", "tokens", "waits")))
        raise kind(f"a reward process {how} before it had started")

    @staticmethod
    async def _end_with_it(process: asyncio.subprocess.Process, run_dir: Path) -> None:
        """Waits for the process to end, and then kills the processes that it has started."""
        await process.wait()
        kill_tree(process.pid, gone=True)
        forget(run_dir, process.pid)

    def send(self, data: bytes) -> None:
        """Sends lines; does nothing if the process has ended."""
        if self._transport is not None:
            self._transport.write(data)

    async def how_it_ended(self) -> str:
        """Describes in words how the process ended; kills it if it still runs."""
        process = self._process
        if process is None:
            return "was ended"  # by the end of the run
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _HOW_S)
        if (code := process.returncode) is None:
            self.end()
            return NO_ANSWER
        if code >= 0:
            return f"ended with exit code {code}"
        known = {int(number): number.name for number in signal.Signals}
        return f"was ended by {known.get(-code, f'signal {-code}')}"

    def end(self) -> None:
        """Kills the process and all that it has started, whatever it is doing."""
        self.lines.take, self.lines.ended = (lambda one: None), (lambda: None)
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            kill_tree(process.pid)  # else ``_end_with_it`` does; its pid may be another's
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def ended(self) -> None:
        """Waits until a killed process is gone, for at most 10 s."""
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=_END_S)
