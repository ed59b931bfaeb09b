"""Gathers what this machine knows of a run, within seconds: processes, status, disks, memory."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.marks import STOPPED, Mark, lives, marks, state
from rlax_plugin.base.liveness.plain_files import is_read_only, tail
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.config import Deadlines, RlaxSection
from rlax_plugin.run.start.run_directory import weights_directory
from rlax_plugin.tools.commands.status.place import read_plain
from rlax_plugin.tools.commands.status.source import UNDATED, Seen, seen_here

_LOG_BYTES = 1 << 16
_MOMENT_S = 0.5
CLOCK_S = 5.0
"""Seconds by which a clock may differ from another."""

_LONGEST_WAIT_S = 2.0  # for the next status
_LOOKS = 3  # at a status of the future, which a busy trainer may write anew only after seconds
_DISK_S = 2.0  # for all file systems to answer
_LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the run.

    Attributes:
      state: the kernel's letter for it, see ``marks.state``; empty: it has ended.
      rss: bytes of memory that it holds.
    """

    mark: Mark
    state: str
    rss: int = 0

    @property
    def lives(self) -> bool:
        return bool(self.state)


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system with files of the run; of one that does not answer, ``total`` is 0.

    Attributes:
      inodes: the number of files that it can hold; 0: it has no such limit.
      free_inodes: the number of files that it can still take.
      read_only: True if this process cannot write there.
    """

    path: str
    free: int
    total: int
    inodes: int = 0
    free_inodes: int = 0
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """The observations of a run at one moment.

    Attributes:
      now: Unix time.
      hosts: number of hosts of the trainer.
      stopped_children: pid and command of processes without a mark that the trainer has started,
        and that are stopped.
      available, memory: bytes of memory of the machine that are available, and all.
      deadlines: of the run.
      damaged: sentences about files of the run that cannot be read.
    """

    now: float
    seen: Seen
    deadlines: Deadlines
    processes: Sequence[Process] = ()
    disks: Sequence[Disk] = ()
    damaged: Sequence[str] = ()
    hosts: int = 1
    stopped_children: Sequence[tuple[int, str]] = ()
    available: int = 1
    memory: int = 1
    by_pid: Mapping[int, Process] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_pid", {one.mark.pid: one for one in self.processes})

    def worker(self, name: str) -> Process | None:
        """Returns the living process of a worker on this machine; None: there is none."""
        found = (p for p in self.processes if p.lives and p.mark.role == "worker")
        return next((one for one in found if one.mark.name == name), None)


def gather(run: RunFiles, section: RlaxSection | None, state_dir: Path) -> Evidence:
    """Looks at a run on this machine.

    Args:
      section: of its config; None: it cannot be read, and the deadlines are the defaults.
    """
    seen, damaged = _seen(run, state_dir)
    memory, processes = psutil.virtual_memory(), [_process(mark) for mark in marks(state_dir)]
    return Evidence(
        now=time.time(),
        seen=seen,
        deadlines=Deadlines() if section is None else section.deadlines,
        processes=processes,
        hosts=_hosts(run),
        stopped_children=[one for process in processes for one in _stopped(process, processes)],
        disks=_disks(run, section, state_dir),
        available=memory.available,
        memory=memory.total,
        damaged=damaged,
    )


def _seen(run: RunFiles, state_dir: Path) -> tuple[Seen, list[str]]:
    """Reads the status, and says what of it cannot be read."""
    try:
        return _settled(run, state_dir), []
    except RlaxError as error:
        seen = seen_here(state_dir, run, readable=False)
        return (seen if seen.ended else Seen(None)), [str(error)]


def _settled(run: RunFiles, state_dir: Path) -> Seen:
    """Reads the status, and the next one if the trainer's clock differs, or was set back.

    A trainer that was stopped between the two moments that are compared has no other clock.

    Raises:
      RlaxError: the status cannot be read.
    """
    first = seen = seen_here(state_dir, run)
    if first.status is None or first.ended:
        return first
    undated = first.problem.startswith(UNDATED)
    if not undated and abs(first.ahead_s) <= CLOCK_S:
        return first
    for _ in range(_LOOKS if undated else 1):
        time.sleep(min(first.status.every_s, _LONGEST_WAIT_S) + _MOMENT_S)
        seen = seen_here(state_dir, run)
        if not seen.problem.startswith(UNDATED):
            break
    return seen


def _process(mark: Mark) -> Process:
    if not lives(mark):
        return Process(mark, "")
    try:
        return Process(mark, state(mark.pid), psutil.Process(mark.pid).memory_info().rss)
    except (OSError, psutil.Error):
        return Process(mark, "")


def _stopped(process: Process, known: Sequence[Process]) -> list[tuple[int, str]]:
    if not process.lives or process.mark.role != "trainer":
        return []
    marked = {one.mark.pid for one in known}
    found = []
    with suppress(OSError, psutil.Error):
        for child in psutil.Process(process.mark.pid).children():
            with suppress(OSError, psutil.Error):  # it has ended meanwhile
                if child.pid not in marked and state(child.pid) in STOPPED:
                    found.append((child.pid, one_line(" ".join(child.cmdline()), _LONGEST_LINE)))
    return found


def _hosts(run: RunFiles) -> int:
    try:
        return int(json.loads(read_plain(run, "config.json")).get("hosts", 1))
    except (OSError, RlaxError, ValueError, TypeError, AttributeError, RecursionError):
        return 1


def _disks(run: RunFiles, section: RlaxSection | None, state_dir: Path) -> list[Disk]:
    runs = [run] if section is None else [run, RunFiles(weights_directory(section, run))]
    places = [state_dir, *(Path(one.location()) for one in runs if one.is_local)]
    found: dict[tuple[int, bool], Disk] = {}
    looks = [(place, on_daemon(functools.partial(_use, place), "disk")) for place in places]
    until_s = time.monotonic() + _DISK_S
    for place, look in looks:
        try:
            device, disk = look.result(max(0.0, until_s - time.monotonic()))
        except TimeoutError:
            found[-len(found) - 1, False] = Disk(str(place), 0, 0)
        except OSError:
            continue  # it is made later
        else:
            found.setdefault((device, disk.read_only), disk)
    return list(found.values())


def _use(place: Path) -> tuple[int, Disk]:
    use, inodes = psutil.disk_usage(str(place)), os.statvfs(place)
    disk = Disk(
        str(place),
        use.free,
        use.total,
        inodes.f_files,
        inodes.f_favail,
        read_only=is_read_only(place),
    )
    return os.stat(place).st_dev, disk


def last_lines(path: Path, most: int) -> list[str]:
    """Returns the last whole lines of a log, harmless; none if it cannot be read."""
    try:
        data = tail(path, _LOG_BYTES + 1)
    except OSError:
        return []
    if len(data) > _LOG_BYTES:  # it may begin within a line
        data = data.partition(b"\n")[2]
    lines = data.decode(errors="replace").splitlines()
    return [one_line(line, _LONGEST_LINE) for line in lines if line.strip()][-most:]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
      what: it, with the process, since when.
      ends: the deadline that ends it; empty: none does.
      try_: advice to the operator.
      process: the one to ask for its stacks; None: none.
      lost: True if the run does not go on by itself.
    """

    what: str
    ends: str = ""
    try_: str = ""
    process: Process | None = None
    lost: bool = False
