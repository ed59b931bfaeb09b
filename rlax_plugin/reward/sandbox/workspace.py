"""A sandbox for programs: a work directory that stays while an episode runs commands in it.

It is the second profile of the sandbox. Commands may be any programs of this machine; they see its
system, Python and what is named, read-only, and write below ``view.WORK`` only. They have no
network, but one port of this machine, if it is named: the sandbox's own network namespace listens
there, and this process passes the bytes on. What a command has started ends with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.reward.sandbox.code_limits import MIB, Limits
from rlax_plugin.reward.sandbox.sandbox import Ended, Running, SandboxError, Server, sufficient
from rlax_plugin.reward.sandbox.server import LOOPBACK
from rlax_plugin.reward.sandbox.view import check_see_paths, of_python
from rlax_plugin.rpc.transport.forwarding import Forwarder

COMMAND_LIMITS = Limits(
    wall_s=60.0,
    cpu_s=600,
    memory_bytes=1024 * MIB,
    processes=64,
    open_files=256,
    file_bytes=64 * MIB,
    space_bytes=256 * MIB,
)
"""The limits of a command, unless others are given."""

_CARRY_S = 60.0  # for putting and taking files
_HEAD_BYTES = 1 << 16  # of what is taken, beside the contents
# Hundreds that start at once would take longer than one may.
_STARTING = threading.BoundedSemaphore(os.cpu_count() or 1)
_ENTRY_BYTES = 512  # that a carried file counts beside its content

# What is packed: a line of JSON, [[path, bytes], ...], and then the contents.
_TAKE = """
import json, os, stat, sys
asked = json.load(sys.stdin)
left, found = asked["most"], []
def add(path):
    global left
    info = os.lstat(path)
    if stat.S_ISREG(info.st_mode):
        left -= info.st_size + asked["entry"] + len(path)
        if left < 0:
            sys.exit("the files are too large")
        found.append((path, info.st_size))
for path in asked["paths"]:
    try:
        add(path)
    except OSError:
        continue
    if os.path.islink(path):
        continue
    for folder, folders, names in os.walk(path):
        for name in names:
            add(os.path.join(folder, name))
out = sys.stdout.buffer
out.write(json.dumps(found).encode() + b"\\n")
for path, size in found:
    with open(path, "rb") as file:
        data = file.read(size)
    out.write(data.ljust(size, b"\\0"))
"""
_PUT = """
import json, os, shutil, sys
source = sys.stdin.buffer
for path, size in json.loads(source.readline()):
    folder, data = os.path.dirname(path), source.read(size)
    if folder:
        os.makedirs(folder, exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)
    with open(path, "xb") as file:
        file.write(data)
    os.chmod(path, 0o700)
"""


class CarryError(RlaxError):
    """What a program left in its workspace cannot be taken, for which it is to blame.

    Attributes:
      ending: for an outcome or a score: it trains as wrong.
    """

    def __init__(self, text: str, ending: Ending = Ending.OVER_OUTPUT):
        super().__init__(text)
        self.ending = ending


class Workspace:
    """Runs commands one at a time, in one sandbox whose work directory stays between them.

    For use in one event loop::

        async with Workspace() as workspace:
            await workspace.put({"a.py": b"print(1)"})
            ended = await workspace.run(["python", "a.py"])
            files = await workspace.take(["a.py"], MIB)

    Args:
      limits: of each command and all processes that it starts, but ``space_bytes`` is the size of
        all files in the work directory (``/tmp``, which is ``$HOME``, too), and counts as memory
        of this machine beside ``memory_bytes``.
      see: directories and files of this machine that commands can read and execute, such as a
        Python environment, whose own Python is then seen as well. The system's programs and the
        Python of this process they always see.
        If root runs this, commands are another user, who must be allowed to read them.
      places: names at the root, such as ``app``, which lead to directories of the same names in the
        work directory: for programs with fixed paths.
      port: port of 127.0.0.1 on this machine that commands reach, at the port ``reached``; None:
        they reach nothing.
      allow_weak: run with the layers that this machine has, whichever these are.

    Attributes:
      alive: False before it is started, and once it has ended, also by a limit that ended the
        whole of it: an ``Ended`` said so, and what was in the work directory is gone.
      reached: the port at which commands reach ``port``.
      failed: True once nothing listened at ``port``, for which no command is to blame.

    Raises:
      SandboxError: a layer is missing, and ``allow_weak`` is not set.
      ValueError: see ``check_see_paths``.
    """

    def __init__(
        self,
        limits: Limits = COMMAND_LIMITS,
        *,
        see: Sequence[str] = (),
        places: Sequence[str] = (),
        port: int | None = None,
        allow_weak: bool = False,
    ):
        self.limits, self.reached = limits, port
        self._offer, self._port = sufficient(allow_weak), port
        check_see_paths(see)
        self._python, self._see = os.path.realpath(sys.prefix), [*map(os.path.normpath, see)]
        self._places = [*places]
        self._server: Server | None = None
        self._jobs = 0
        self._free = asyncio.Lock()
        self._forwarder: Forwarder | None = None
        self._closing: list[asyncio.Future[None]] = []

    @property
    def failed(self) -> bool:
        return self._forwarder is not None and self._forwarder.failed

    @property
    def alive(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        """Starts the sandbox, which takes 0.1 to 20 s.

        Raises:
          SandboxError: it cannot be started.
        """
        starting = _on_thread(self._server_started)
        try:
            self._server = server = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_close_unwanted)
            raise
        if self._port is not None and server.listener is not None:
            self.reached = server.listener.getsockname()[1]
            try:
                self._forwarder = await Forwarder.started(server.listener, LOOPBACK, self._port)
            except BaseException:
                self._end()
                raise

    def _server_started(self) -> Server:
        with _STARTING:
            bases = [base for path in self._see for base in _bases(path)]
            see = [*of_python(self._python), *self._see, *bases]
            return Server(self.limits, self._offer, see=see, places=self._places)

    async def run(
        self,
        command: Sequence[str],
        stdin: bytes = b"",
        *,
        environment: Mapping[str, str] | None = None,
        wall_s: float | None = None,
    ) -> Ended:
        """Runs a command to its end, in the work directory; all that it started ends with it.

        A program that is not there, or cannot be executed, exits with 127 or 126, as in a shell.
        If this is cancelled, the command is killed.

        Args:
          environment: variables beside ``PATH``, ``HOME``, ``TMPDIR`` and ``LANG``.
          wall_s: its time; None: that of the limits.

        Raises:
          SandboxError: the sandbox does not work, or was ended from outside, for which no command
            can be to blame.
        """
        variables = {"PATH": _path([*self._see, self._python])} | dict(environment or {})
        asked = {"command": [*command], "environment": variables}
        return await self._run(asked, stdin, wall_s)

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Writes files into the work directory, in place of what is there; all are executable.

        Args:
          files: relative path -> content.

        Raises:
          CarryError: they cannot be written.
          SandboxError: see ``run``.
          ValueError: a path is not plain and relative.
        """
        check_work_paths(files)
        listed = json.dumps([[path, len(data)] for path, data in files.items()]).encode()
        packed = b"".join([listed, b"\n", *files.values()])
        await self._carried(_PUT, packed, "files cannot be put into the workspace")

    async def take(self, paths: Sequence[str], most_bytes: int = MIB) -> dict[str, bytes]:
        """Returns regular files of the work directory; no links, devices or sockets.

        Args:
          paths: files, and directories with all files below them; what is missing is left out.
          most_bytes: of all of them together; at most 1 MiB.

        Raises:
          CarryError: they are larger, or cannot be read.
          SandboxError: see ``run``.
          ValueError: a path is not plain and relative.
        """
        check_work_paths(paths)
        asked = {
            "paths": [*paths],
            "most": min(most_bytes, MIB - _HEAD_BYTES),
            "entry": _ENTRY_BYTES,
        }
        failure = "files cannot be taken from the workspace"
        return _unpacked(await self._carried(_TAKE, json.dumps(asked).encode(), failure))

    async def close(self) -> None:
        """Kills every process, and removes the work directory; cancel ``run`` before."""
        self._end()
        await asyncio.shield(asyncio.gather(*self._closing))

    async def __aenter__(self) -> Workspace:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _carried(self, source: str, stdin: bytes, failure: str) -> bytes:
        """Runs a program of this module; returns its output."""
        ended = await self._run({"source": source}, stdin, _CARRY_S)
        if ended.why == "time":  # which no program of the workspace can use up: they have ended
            raise SandboxError(f"{failure} within {_CARRY_S:g} s")
        if not ended.right:
            text = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            reason = f"{failure}: {text or ended.why}"[:500]
            raise CarryError(reason, ended.ending or Ending.CRASHED)
        return ended.stdout

    async def _run(self, asked: Mapping[str, object], stdin: bytes, wall_s: float | None) -> Ended:
        async with self._free:
            if (server := self._server) is None:
                raise SandboxError("the workspace is not started, or has ended")
            self._jobs += 1
            program = json.dumps(asked).encode()
            try:
                running = Running(server, self._jobs, program, stdin, None, self._end, wall_s)
            except OSError as error:
                self._end()
                raise SandboxError(f"the sandbox cannot run a command: {error}") from error
            try:
                said = await _answer(server, running)
            except asyncio.CancelledError:
                running.ask_to_stop()
                running.forget()
                raise
            return running.result(said)

    def _end(self) -> None:
        server, self._server = self._server, None
        if self._forwarder is not None:  # before its socket, which the event loop would keep
            self._forwarder.close()
        if server is not None:
            self._closing.append(asyncio.ensure_future(asyncio.to_thread(server.close)))


async def _answer(server: Server, running: Running) -> dict[str, object] | None:
    """Returns the server's message about a program; None: it is gone, see ``Server.lost``."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    watch_s, control = server.memory.watch_s, server.control.fileno()
    loop.add_reader(control, arrived.set)
    try:
        while (left_s := running.end - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s if watch_s is None else min(left_s, watch_s)):
                    await arrived.wait()
            if arrived.is_set():
                arrived.clear()
                said = server.receive()
                if said is None or said.get("job", running.number) == running.number:
                    return said
            elif watch_s is not None and await _on_thread(server.memory.exceeded):
                server.lost = "memory"
                return None
        server.lost = "time"
        return None
    finally:
        loop.remove_reader(control)


def _on_thread[T](work: Callable[[], T]) -> asyncio.Future[T]:
    """Runs work on a thread of its own: those of the event loop's may all wait, or be busy."""
    return asyncio.wrap_future(on_daemon(work, "rlax-sandbox"))


def _close_unwanted(starting: asyncio.Future[Server]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        on_daemon(starting.result().close, "rlax-sandbox")


def _bases(path: str) -> list[str]:
    """Returns what a virtual environment needs of the Python that it was made with."""
    try:
        with open(os.path.join(path, "pyvenv.cfg")) as file:
            settings = dict(line.split(" = ", 1) for line in file if " = " in line)
    except OSError:
        return []
    home = settings.get("home", "").strip()
    pythons = [os.path.join(home, name) for name in ("python3", "python")]
    if not os.path.isabs(home) or not (found := [*filter(os.path.isfile, pythons)]):
        return []
    prefix, real = (
        os.path.dirname(os.path.dirname(one)) for one in (found[0], os.path.realpath(found[0]))
    )
    # A folder bin with a link to Python, such as that of a user, may be among other files.
    linked = of_python(prefix) if os.path.realpath(prefix) == real else [home]
    return [*dict.fromkeys([*linked, *of_python(real)])]


def _path(see: Sequence[str]) -> str:
    """Returns PATH: the environments that are seen, and the system."""
    own = [f"{path}/bin" for path in (*see, os.path.realpath(sys.base_prefix))]
    return ":".join([*filter(os.path.isdir, own), "/usr/local/bin", "/usr/bin", "/bin"])


def finds_program(name: str, see: Sequence[str]) -> bool:
    """True if commands that see these paths find a program of this name; see ``Workspace``."""
    return shutil.which(name, path=_path([*see, os.path.realpath(sys.prefix)])) is not None


def check_work_paths(paths: Iterable[str]) -> None:
    """Checks paths of a work directory.

    Raises:
      ValueError: one is not plain and relative; names it.
    """
    for path in paths:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise ValueError(f"{path!r} is no plain path relative to the work directory")


def _unpacked(packed: bytes) -> dict[str, bytes]:
    head, _, rest = packed.partition(b"\n")
    files: dict[str, bytes] = {}
    for path, size in json.loads(head):
        files[path], rest = rest[:size], rest[size:]
    return files
