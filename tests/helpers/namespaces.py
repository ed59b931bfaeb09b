"""Machines on one machine: network namespaces behind a bridge, with file systems of their own.

A ``Machine`` has an address 10.x.x.x that only the machines of its network reach, processes of its
own, and directories that are empty for it alone. It ends like one that loses power. Its namespaces
are named after the process that made them, so what a killed test leaves is removed by the next one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

_TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
_COMMAND_S = 60.0
_TEMPORARY = Path("/tmp")
# Process, when it started, because pids are used again, and the number of the network.
_OURS = re.compile(r"rlax-(\d+)-(\d+)-\d+")
_NAME = re.compile(rf"{_OURS.pattern}-(hub|\d+)")
_NETWORK = "10.77.0."
_numbers = itertools.count()


@functools.cache
def problem() -> str:
    """The reason why no machines can be had here; empty if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root of Linux can make network namespaces"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    try:
        with network(1):
            return ""
    except NamespaceError as error:
        return f"no network namespaces: {error}"


def need_machines() -> None:
    """Skips the test where no machines can be had."""
    if why := problem():
        pytest.skip(why)


class NamespaceError(Exception):
    """A command that makes or removes a machine has failed."""


class Machine:
    """A host of a network, which runs commands in namespaces of its own.

    Args:
      name: of its network namespace.
      port: the namespace of the bridge, and the machine's port there.
      home: its home directory; empty at first, and seen by this machine only.
      private: further directories of which it has empty ones of its own.

    Attributes:
      address: of its only interface besides loopback.
    """

    def __init__(
        self,
        name: str,
        address: str,
        port: tuple[str, str],
        home: Path,
        private: Sequence[Path] = (),
    ):
        self.name, self.address, self.home = name, address, home
        self._hub, self._port = port
        own = [str(directory) for directory in (home, *private)]
        for directory in own:
            Path(directory).mkdir(parents=True, exist_ok=True)
        mounts = [f"mount -t tmpfs -o mode=0700 rlax {shlex.quote(path)}" for path in own]
        script = " && ".join((*mounts, "echo ready", "exec sleep infinity"))
        # A chain that ends with this process: the first, `unshare`, gets SIGKILL; so does what it
        # started, which is process 1 of the machine; and with that one, all that it runs.
        command = ("setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", name)
        spaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        self._holder = subprocess.Popen(
            [*command, *spaces, "sh", "-c", script], stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":  # or its end
            self.power_off()
            raise NamespaceError(f"{name} did not start")
        (self._first,) = psutil.Process(self._holder.pid).children()

    def command(self, *words: str) -> list[str]:
        """The command line that runs a command on this machine."""
        enter = ("nsenter", "--target", str(self._first.pid), "--mount", "--net", "--pid")
        return [*enter, f"--wdns={self.home}", "--", *words]

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        known = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        return known | {"HOME": str(self.home)} | dict(more)

    def run(self, *words: str, timeout_s: float = _COMMAND_S, **environment: str) -> str:
        """Returns the output of a command, which must succeed."""
        done = subprocess.run(
            self.command(*words), env=self._environment(environment), capture_output=True,
            text=True, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, f"{shlex.join(words)} on {self.name}: {done.stderr}"
        return done.stdout

    @contextmanager
    def process(
        self, log: Path, *words: str, **environment: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A command with its output in ``log``, which is killed at the end if it still runs."""
        with log.open("w") as out:
            started = subprocess.Popen(
                self.command(*words), env=self._environment(environment), stdout=out, stderr=out
            )
        try:
            yield started
        finally:
            # ``nsenter`` waits for a child in the machine's namespace of processes.
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(started.pid).children(recursive=True):
                    child.kill()
            started.kill()
            started.wait(60)

    def processes(self, word: str) -> list[psutil.Process]:
        """The processes of the machine that have a word in their command line."""
        found = []
        for pid in _ip("netns", "pids", self.name).split():
            with contextlib.suppress(psutil.NoSuchProcess):
                one = psutil.Process(int(pid))
                if word in one.cmdline() and one.name() != "nsenter":
                    found.append(one)
        return found

    def seen(self, path: Path) -> Path:
        """The path by which this process sees a file of the machine."""
        return Path(f"/proc/{self._first.pid}/root{path}")

    def unplug(self) -> None:
        """Cuts the machine off: packets vanish, and no connection of it is closed."""
        _ip("-n", self._hub, "link", "set", self._port, "nomaster")

    def plug_in(self) -> None:
        """Ends what ``unplug`` began."""
        _ip("-n", self._hub, "link", "set", self._port, "master", "bridge")

    def power_off(self) -> None:
        """Kills all processes of the machine; unplugged before, it takes leave of nobody."""
        self._holder.kill()
        self._holder.wait(60)
        if self._holder.stdout is not None:
            self._holder.stdout.close()


@contextmanager
def network(
    count: int, directory: Path | None = None, private: Sequence[Path] = ()
) -> Iterator[list[Machine]]:
    """Machines that reach each other, and nothing else; all is removed at the end.

    Args:
      directory: contains their home directories; None: below ``/tmp``.
      private: see ``Machine``.

    Raises:
      NamespaceError: they cannot be made here.
    """
    remove_leftovers()
    us = f"rlax-{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"
    hub, names = f"{us}-hub", [f"{us}-{number}" for number in range(count)]
    with ExitStack() as stack:
        if directory is None:
            directory = _TEMPORARY / us
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        for name in (hub, *names):
            _ip("netns", "add", name)
            stack.callback(_remove, name)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        machines = []
        for number, name in enumerate(names):
            port, address = f"port{number}", f"{_NETWORK}{number + 1}"
            peer = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", hub, "link", "add", port, *peer)
            _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", name, "link", "set", link, "up")
            machine = Machine(name, address, (hub, port), directory / f"home-{number}", private)
            stack.callback(machine.power_off)
            machines.append(machine)
        yield machines


def remove_leftovers() -> None:
    """Removes the namespaces and directories of processes that have ended without doing so."""
    for name in leftovers():
        with contextlib.suppress(NamespaceError):  # another test removes it, too
            _remove(name)
    for directory in _TEMPORARY.glob("rlax-*"):
        if _is_left_over(_OURS.fullmatch(directory.name)):
            shutil.rmtree(directory, ignore_errors=True)


def leftovers() -> list[str]:
    """The namespaces of processes that have ended."""
    return [name for name in existing() if _is_left_over(_NAME.fullmatch(name))]


def _is_left_over(name: re.Match[str] | None) -> bool:
    return name is not None and _started(int(name[1])) != int(name[2])


def existing() -> list[str]:
    """All names of network namespaces that have the form of ours."""
    names = (line.split()[0] for line in _ip("netns", "list").splitlines() if line)
    return [name for name in names if _NAME.fullmatch(name)]


def _started(pid: int) -> int:
    """The time at which a process started, in ticks since the machine's start; 0: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def _remove(name: str) -> None:
    for pid in _ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), 9)
    _ip("netns", "delete", name)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_COMMAND_S)
    if done.returncode != 0:
        raise NamespaceError(f"ip {shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout
