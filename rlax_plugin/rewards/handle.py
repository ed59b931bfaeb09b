"""A reward process as the trainer's process holds it: starting it, asking it, ending it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import signal
import socket
import sys
import tempfile
from typing import Any

from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.rewards.output import RewardOutput
from rlax_plugin.rewards.process_tree import kill_tree

_LINE_LIMIT = 1 << 20  # an answer is a few numbers, or an error of one line
_END_S = 10.0  # until a process that was killed is gone
_GRACE_S = 0.1  # for a line that is there when its deadline has passed
_HOW_S = 5.0  # until one that sends nothing more has ended, if it does
NO_ANSWER = "sent something that is not an answer"


class EndedError(Exception):
    """A reward process has ended, or is not to be used any more. Says how."""


class RewardProcess:
    """One reward process; answers one job at a time. It is started again after each ``end``."""

    def __init__(self, hello: dict[str, Any], output: RewardOutput, startup_s: float):
        self._hello, self._output, self._startup_s = hello, output, startup_s
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ended: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def died(self) -> bool:
        """Whether it has ended although nobody ended it."""
        return self._process is not None and self._process.returncode is not None

    @property
    def current(self) -> int:
        """The number of the reward that it calls, or called last."""
        return self._current[0]

    async def start(self) -> None:
        """Starts it, after what was left of the last one was ended.

        Raises:
          DeadlineError: it took too long.
          RlaxError: it ended at once.
        """
        self.end()
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as shared:
            shared.write(b"\0")
            shared.flush()
            self._current = mmap.mmap(shared.fileno(), 1)
            descriptors = theirs.fileno(), shared.fileno()
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rlax_plugin.rewards.process",
                *map(str, descriptors),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._output.descriptor,
                stderr=self._output.descriptor,
                pass_fds=descriptors,
                start_new_session=True,  # a Ctrl-C is the controller's to handle
            )
        self._ended = asyncio.ensure_future(self._end_with_it(process))
        self._reader, self._writer = await asyncio.open_unix_connection(
            sock=ours, limit=_LINE_LIMIT
        )
        self.ask(self._hello)
        try:
            await self.line(self._startup_s)
        except TimeoutError:
            self.end()
            what, key = "starting a reward process", "rlax.deadlines.startup_s"
            raise DeadlineError(what, self._startup_s, key) from None
        except (EndedError, ValueError) as error:
            self.end()
            how = error if isinstance(error, EndedError) else NO_ANSWER
            raise RlaxError(f"a reward process {how} before it had started") from None

    @staticmethod
    async def _end_with_it(process: asyncio.subprocess.Process) -> None:
        """What it has started does not outlive it, whatever ends it."""
        await process.wait()
        kill_tree(process.pid, gone=True)

    def ask(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def line(self, deadline_s: float) -> bytes:
        """The next line that it sends.

        Raises:
          TimeoutError: it took too long.
          ValueError: what it sends is no line of an answer's length.
          EndedError: it has ended.
        """
        with contextlib.suppress(ConnectionError):
            try:
                line = await asyncio.wait_for(self._reader.readline(), deadline_s)
            except TimeoutError:
                # After a pause of this very process the timer may come before a line that is there.
                line = await asyncio.wait_for(self._reader.readline(), _GRACE_S)
            if line:
                return line
        raise EndedError(await self.how_it_ended())

    async def how_it_ended(self) -> str:
        """In words; kills it if it lives."""
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
        """Kills it with all that it has started, whatever it is at."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:  # else ``_end_with_it`` does; its pid may be another's
                kill_tree(process.pid)
            if self._writer is not None:
                self._writer.close()

    async def ended(self) -> None:
        """Returns once a process that was killed is gone; 10 s at most."""
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=_END_S)
