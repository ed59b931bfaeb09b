"""Starts and ends a sandbox, and runs pieces of code in it.

A piece of code can influence only files of limited size, its exit code, and the data it writes on
its channel. All of this is treated as hostile.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.reward.sandbox.code_limits import MIB, Limits
from rlax_plugin.reward.sandbox.entering import TESTED_UID, unused_uid, write_tables
from rlax_plugin.reward.sandbox.layers import ENVIRONMENT, Offer, command, offered
from rlax_plugin.reward.sandbox.memory import MemoryLimit, memory_limit

_START_S = 20.0
_GRACE_S = 5.0  # until a server that has killed a piece says so
_MESSAGE = 1 << 16
OUTPUT_BYTES = MIB
"""Length up to which output is kept, where the limit of files is larger."""

Why = Literal["exited", "signal", "time", "memory", "output", "stopped"]
_ENDINGS: dict[Why, Ending] = {
    "signal": Ending.CRASHED,
    "time": Ending.OVER_TIME,
    "memory": Ending.OVER_MEMORY,
    "output": Ending.OVER_OUTPUT,
}


class SandboxError(RlaxError):
    """A sandbox could not be started or did not work, and the code is not to blame."""

    def __init__(self, text: str, ending: Ending = Ending.SANDBOX_FAILED):
        super().__init__(text)
        self.ending = ending


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a piece of code.

    Attributes:
      why: it ``exited`` by itself; a ``signal`` ended it; it was killed because its ``time`` was
        over, its processes used too much ``memory``, or it was ``stopped``; ``output``: it exited
        and its output has reached the limit, so that some may be missing.
      code: exit code, or the negative number of the signal.
      stdout, stderr: its output, at most ``Limits.file_bytes`` or 1 MiB each.
      began: False if a program could not be executed, for which ``code`` is 127 or 126.
    """

    why: Why
    code: int
    stdout: bytes
    stderr: bytes
    began: bool = True

    @property
    def right(self) -> bool:
        """True if it exited with code 0."""
        return self.why == "exited" and self.code == 0

    @property
    def ending(self) -> Ending | None:
        """How the code failed to end by itself, for ``Score``; None if it exited with code 0."""
        if self.why == "exited":
            return Ending.CRASHED if self.code else None
        return _ENDINGS.get(self.why)


class Sandbox:
    """Runs pieces of untrusted Python code, one at a time, each in a fresh process.

    The sandbox is started by the first piece, and again if it was lost. Only one thread may use it.
    """

    def __init__(
        self, limits: Limits | None = None, *, prelude: str = "", allow_weak: bool = False
    ):
        """Prepares a sandbox without starting it.

        Args:
          limits: limits of each piece of code.
          prelude: trusted Python; each piece of code can import it as ``prelude``, and finds it
            loaded. At most 100,000 characters.
          allow_weak: run with the layers that this machine has, whichever these are.

        Raises:
          SandboxError: a layer is missing, and ``allow_weak`` is not set.
        """
        self.limits = limits or Limits()
        self._offer = sufficient(allow_weak)
        self._prelude = prelude
        self._server: Server | None = None
        self._jobs = 0

    @property
    def layers(self) -> Collection[str]:
        """Names of its layers."""
        return self._offer.having

    def start(self) -> None:
        """Starts the sandbox if it is not running; else the first piece of code waits for that.

        Raises:
          SandboxError: it cannot be started.
        """
        self._started()

    def _started(self) -> Server:
        if self._server is None:
            self._server = Server(self.limits, self._offer, self._prelude)
        return self._server

    def run(self, source: str, stdin: bytes = b"", channel: socket.socket | None = None) -> Ended:
        """Runs a program to its end; see ``begin``.

        Raises:
          SandboxError: it could not be run, or the sandbox was ended from outside.
        """
        return self.begin(source, stdin, channel).wait()

    def begin(
        self, source: str, stdin: bytes = b"", channel: socket.socket | None = None
    ) -> Running:
        """Starts a program.

        Args:
          source: Python; lone surrogates in it are a syntax error.
          stdin: its standard input.
          channel: becomes its file 3 (``CHANNEL``); the caller's own is closed.

        Raises:
          SandboxError: another one is running, or the sandbox cannot be started.
        """
        server = self._started()
        self._jobs += 1
        data = source.encode(errors="surrogatepass")
        try:
            return Running(server, self._jobs, data, stdin, channel, self.close)
        except OSError as error:
            self.close()
            raise SandboxError(f"the sandbox cannot run a program: {error}") from error

    def close(self) -> None:
        """Kills every process in the sandbox."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sufficient(allow_weak: bool) -> Offer:
    """Returns the layers of this machine.

    Raises:
      SandboxError: one is missing, and ``allow_weak`` is not set, or all are.
    """
    offer = offered()
    if (refusal := offer.refusal()) and not allow_weak:
        raise SandboxError(refusal)
    if not offer.having:
        raise SandboxError(f"no layer of the sandbox can be had: {refusal}")
    return offer


class Running:
    """A running piece of code, or a program.

    Args:
      wall_s: its time, if it is not that of the limits.
      close: is called if the sandbox cannot go on.

    Attributes:
      number: of the job.
      end: time of the monotonic clock at which the server must have said how it ended.
    """

    def __init__(
        self,
        server: Server,
        number: int,
        program: bytes,
        stdin: bytes,
        channel: socket.socket | None,
        close: Callable[[], None],
        wall_s: float | None = None,
    ):
        self.number, self._server, self._close = number, server, close
        wall_s = server.limits.wall_s if wall_s is None else wall_s
        self._ended: Ended | None = None
        self._failure: SandboxError | None = None
        with ExitStack() as stack:
            if channel is not None:
                stack.enter_context(channel)
            with ExitStack() as if_failed:
                files = []
                for data in (program, stdin, b"", b""):
                    files.append(memory_file(data))
                    closing = stack if len(files) < 3 else if_failed
                    closing.callback(os.close, files[-1])
                self._written = files[2:]
                self._out_of_memory()  # whatever was before does not count
                passed = [] if channel is None else [channel.fileno()]
                server.send({"job": number, "wall_s": wall_s}, [*files, *passed])
                if_failed.pop_all()
        self.end = time.monotonic() + wall_s + _GRACE_S

    def wait(self) -> Ended:
        """Waits for its end, which comes by ``Limits.wall_s`` at the latest.

        Raises:
          SandboxError: the sandbox failed, not the code, or was ended from outside, which the code
            cannot do; a sample that this happens to must not train.
        """
        if self._failure is not None:
            raise self._failure
        if self._ended is None:
            self._ended = self.result(self._server.answer(self.number, self.end))
        return self._ended

    def stop(self) -> Ended:
        """Kills it if it still runs.

        Raises:
          SandboxError: see ``wait``.
        """
        if self._ended is None:
            self.ask_to_stop()
        return self.wait()

    def ask_to_stop(self) -> None:
        """Has it killed, and does not wait."""
        with suppress(OSError):
            self._server.send({"stop": self.number})

    def forget(self) -> None:
        """Gives up the files of its output; nothing can wait for it any more."""
        for file in self._written:
            os.close(file)

    def result(self, said: dict[str, Any] | None) -> Ended:
        """Returns what the server's message about it means; see ``wait`` and ``Server.answer``."""
        exceeded = self._out_of_memory()
        if said is None:  # the server is gone, or ends now, with all that it has started
            why = self._server.lost or ("memory" if exceeded else None)
            # Process 1 of a namespace cannot be killed by what runs in it.
            if why is None and "pid namespace" in self._server.layers:
                reason = "the sandbox was ended from outside while it ran a program"
                raise self._failed(SandboxError(reason, Ending.PROCESS_ENDED))
            self._close()
            return self._made(why or "signal", -signal.SIGKILL)
        if "failed" in said:
            reason = f"a piece of code could not be started: {said['failed']}"
            raise self._failed(SandboxError(reason))
        why = said["why"] or ("exited" if said["code"] >= 0 else "signal")
        if why == "signal" and said["code"] == -signal.SIGXCPU:
            why = "time"
        elif why == "signal" and exceeded:
            why = "memory"
        return self._made(why, said["code"], said["began"])

    def _out_of_memory(self) -> bool:
        """True if the kernel has killed a process; what is watched has been read already."""
        return self._server.memory.watch_s is None and self._server.memory.exceeded()

    def _failed(self, failure: SandboxError) -> SandboxError:
        """Ends the sandbox, and keeps why this piece has no result for every later ``wait``."""
        self._close()
        self.forget()
        self._failure = failure
        return failure

    def _made(self, why: Why, code: int, began: bool = True) -> Ended:
        most = min(self._server.limits.file_bytes, OUTPUT_BYTES)
        texts = []
        for file in self._written:
            texts.append(os.pread(file, most, 0))
            os.close(file)
        if why == "exited" and any(len(text) >= most for text in texts):
            why = "output"
        return Ended(why, code, texts[0], texts[1], began)


def memory_file(data: bytes) -> int:
    """Returns a file in memory without a path."""
    file = os.memfd_create("rlax-sandbox", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.lseek(file, 0, os.SEEK_SET)
    except OSError:
        os.close(file)
        raise
    return file


class Server:
    """The processes of one sandbox.

    Args:
      see: what programs see beside the system's files; None: it runs Python code only.
      places: see ``Workspace``.

    Attributes:
      limits: of each piece.
      layers: names of its layers.
      memory: the limit of the whole tree.
      lost: the reason if this process ended it while it ran a piece.
      listener: listens on 127.0.0.1 in the network namespace of programs, if they have one.
    """

    def __init__(
        self,
        limits: Limits,
        offer: Offer,
        prelude: str = "",
        see: Sequence[str] | None = None,
        places: Sequence[str] = (),
    ):
        self.lost: Literal["time", "memory"] | None = None
        self._kept: str | None = None  # a directory of this machine that ends with it
        self._inner: int | None = None  # refers to the process that everything ends with
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.limits, self.layers = limits, offer.having
        self.listener: socket.socket | None = None
        # What is in its work place is memory as well, and stays there if it is for programs.
        kept_bytes = 0 if see is None else limits.space_bytes
        self.memory: MemoryLimit = memory_limit(limits.memory_bytes, kept_bytes)
        with theirs:
            self._process = subprocess.Popen(
                command("server", str(theirs.fileno())),
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        atexit.register(self.close)
        try:
            self._start(limits, offer, prelude, {"see": see, "places": places})
        except (OSError, ValueError, LookupError) as error:
            self.close()
            raise SandboxError(f"the sandbox cannot be started: {error}") from error
        except BaseException:
            self.close()
            raise

    def _start(
        self, limits: Limits, offer: Offer, prelude: str, view: Mapping[str, object]
    ) -> None:
        self.memory.add(self._process.pid)
        layers = [name for name in offer.having if name != "memory limit"]
        uid = TESTED_UID
        if os.geteuid() == 0 and "user namespace" not in layers and "unused uid" in layers:
            uid = unused_uid(self._process.pid)
        settings = {"layers": layers, "limits": asdict(limits), "uid": uid, "prelude": prelude}
        self.send({**settings, **view})
        end, ready = time.monotonic() + _START_S, False
        while True:
            said = self._received(end)
            if said is None or "failed" in said:
                reason = said["failed"] if said else "it ended, or took too long"
                raise SandboxError(f"the sandbox cannot be started: {reason}")
            if "unshared" in said:
                write_tables(self._process.pid, os.geteuid(), os.getegid())
                self.send({"tables": True})
            elif "server" in said:
                self._inner = os.pidfd_open(said["server"])
                self.memory.add(said["server"])
            ready = ready or "ready" in said
            self._kept = said.get("kept") or self._kept
            if ready and self._inner is not None:
                return

    def send(self, message: dict[str, Any], files: list[int] = []) -> None:  # noqa: B006  not kept
        socket.send_fds(self.control, [json.dumps(message).encode()], files)

    def answer(self, number: int, end: float) -> dict[str, Any] | None:
        """Returns the server's message about a piece; None if the server is gone, see ``lost``."""
        while True:
            said = self._received(end)
            if said is None or said.get("job", number) == number:  # a failing server names none
                return said

    def _received(self, end: float) -> dict[str, Any] | None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        watch_s = self.memory.watch_s
        while (left := end - time.monotonic()) > 0:
            wait_s = left if watch_s is None else min(left, watch_s)
            if poll.poll(wait_s * 1000):
                return self.receive()
            if watch_s is not None and self.memory.exceeded():
                self.lost = "memory"
                return None
        self.lost = "time"
        return None

    def receive(self) -> dict[str, Any] | None:
        """Returns the message that has arrived; None: the server is gone."""
        data, files, _, _ = socket.recv_fds(self.control, _MESSAGE, 1)
        if files:
            self.listener = socket.socket(fileno=files[0])
        return json.loads(data) if data else None

    def close(self) -> None:
        """Ends every process and waits until they are gone, for at most 10 s."""
        atexit.unregister(self.close)
        self.control.close()
        if self.listener is not None:
            self.listener.close()
        if self._inner is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
            _wait_for_end(self._inner)
            os.close(self._inner)
            self._inner = None
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self.memory.close()
        if self._kept is not None:
            shutil.rmtree(self._kept, ignore_errors=True)


def _wait_for_end(process: int) -> None:
    """Waits until a process and its pid namespace have ended, for at most 5 s."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll(_GRACE_S * 1000)
