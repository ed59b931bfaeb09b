"""Limits the memory of a whole tree of processes, by a cgroup or else by watching it."""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil

_CGROUPS = "/sys/fs/cgroup"
_NAME = "rlax-sandbox"
_numbers = itertools.count()
_GONE_S = 5.0
_TABLE_S = 0.01
_reading = threading.Lock()
_children: dict[int, list[int]] = {}  # of all processes of this machine, at this time:
_read_s = float("-inf")
OWN_BYTES = 64 << 20
"""Memory of the interpreter that starts pieces of code, which is in the tree as well."""


class MemoryLimit(Protocol):
    """Keeps a tree of processes below a number of bytes.

    Attributes:
      watch_s: seconds after which ``exceeded`` must be called again while something runs; None: the
        kernel enforces the limit.
    """

    @property
    def watch_s(self) -> float | None: ...

    def add(self, pid: int) -> None:
        """Covers a process and its later descendants."""
        ...

    def exceeded(self) -> bool:
        """True if the limit was reached since the last call."""
        ...

    def close(self) -> None: ...


def memory_limit(limit_bytes: int, files_bytes: int = 0) -> MemoryLimit:
    """Returns the best kind of limit that this machine offers.

    Args:
      files_bytes: of files in memory, which only a cgroup counts.
    """
    directory = _new_cgroup()
    return Watch(limit_bytes) if directory is None else Cgroup(directory, limit_bytes + files_bytes)


def how() -> str:
    """Returns in words how memory is limited here."""
    directory = _new_cgroup()
    if directory is None:
        return "by watching the tree, since no memory cgroup can be written"
    directory.rmdir()
    return "by a memory cgroup"


class Cgroup:
    """A control group below that of this process."""

    watch_s: float | None = None

    def __init__(self, directory: Path, limit_bytes: int):
        self._directory = directory
        self._limit = limit_bytes + OWN_BYTES
        first = directory / "memory.max"
        self._second_version = first.exists()
        names = (
            ("memory.max", "memory.swap.max")
            if self._second_version
            else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        )
        (directory / names[0]).write_text(str(self._limit))
        with suppress(OSError):  # a kernel without an account of swap
            (directory / names[1]).write_text("0" if self._second_version else str(self._limit))
        self._killed = self._kills()

    def add(self, pid: int) -> None:
        (self._directory / "cgroup.procs").write_text(str(pid))

    def _kills(self) -> int:
        name = "memory.events" if self._second_version else "memory.oom_control"
        with suppress(OSError):
            for line in (self._directory / name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def exceeded(self) -> bool:
        before, self._killed = self._killed, self._kills()
        return self._killed > before

    def close(self) -> None:
        """Removes the group once its processes are gone."""
        end = time.monotonic() + _GONE_S
        while time.monotonic() < end:
            try:
                self._directory.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # what was killed has not ended yet
                time.sleep(0.005)
            else:
                return


class Watch:
    """Adds up the memory of all processes; each process also has a limit of its address space.

    Files in memory, pipes and sockets are not counted.
    """

    watch_s: float | None = 0.02

    def __init__(self, limit_bytes: int):
        self._limit = limit_bytes + OWN_BYTES
        self._root: psutil.Process | None = None

    def add(self, pid: int) -> None:
        with suppress(psutil.Error):
            self._root = psutil.Process(pid)

    def exceeded(self) -> bool:
        if (root := self._root) is None:
            return False
        tree = [root]
        for pid in _descendants(root.pid):
            with suppress(psutil.Error):
                tree.append(psutil.Process(pid))
        # What processes share is in the first sum several times, in the second one once.
        return sum(map(_resident, tree)) > self._limit and sum(map(_own, tree)) > self._limit

    def close(self) -> None:
        self._root = None


def _descendants(root: int) -> list[int]:
    """Returns the processes below one, in a table that all who watch read from this machine."""
    global _children, _read_s
    with _reading:
        if time.monotonic() - _read_s > _TABLE_S:
            _children = {}
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    _children.setdefault(process.ppid(), []).append(process.pid)
            _read_s = time.monotonic()
        children = _children
    found, parents = {root}, [root]
    while parents:
        more = {*children.get(parents.pop(), ())} - found
        found |= more
        parents += more
    return [*found - {root}]


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def _own(process: psutil.Process) -> int:
    with suppress(OSError), open(f"/proc/{process.pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return _resident(process)


def _new_cgroup() -> Path | None:
    """Returns a new group that limits memory; None if this process cannot have one."""
    for place in _own_cgroups():
        _remove_left(place)
        directory = place / f"{_NAME}-{os.getpid()}-{next(_numbers)}"
        try:
            directory.mkdir()
        except OSError:
            continue
        limits = ("memory.limit_in_bytes", "memory.max")
        if any(os.access(directory / name, os.W_OK) for name in limits):
            return directory
        directory.rmdir()
    return None


def _own_cgroups() -> list[Path]:
    """Returns the groups of this process that may limit memory, of cgroup version 1 or 2."""
    found = []
    with suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            inside = path.lstrip("/")
            if "memory" in controllers.split(","):
                found.insert(0, Path(_CGROUPS, "memory", inside))
            elif not controllers:
                found += [Path(_CGROUPS, inside), Path(_CGROUPS, "unified", inside)]
    return [path for path in found if path.is_dir()]


def _remove_left(place: Path) -> None:
    """Removes empty groups of processes that were killed before they could remove them."""
    for left in place.glob(f"{_NAME}-*-*"):
        pid = left.name.split("-")[-2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            with suppress(OSError):
                left.rmdir()
