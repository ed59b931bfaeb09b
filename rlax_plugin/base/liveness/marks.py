"""The processes of a run on this machine: each leaves a mark, by which others find and ask it.

A process that has left its mark writes the stacks of its threads when others request them by a
file. The mark says exactly which process that is, as another one may have got the same pid.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from rlax_plugin.base.files.private import make_private
from rlax_plugin.base.liveness.own_stacks import Answering
from rlax_plugin.base.liveness.plain_files import tail
from rlax_plugin.base.liveness.run_status import NOW_MOST
from rlax_plugin.base.text.harmless import one_line

STATE_DIR = "RLAX_STATE_DIR"
"""Environment variable by which a launcher names the run's state directory to its workers."""

STOPPED = ("T", "t")
"""States of a process, see ``state``, that a signal or a debugger has stopped."""

Role = Literal["trainer", "host", "worker", "rewards", "parameter server"]
_FOLDER = "processes"
_MOST_BYTES, _MOST_THREADS = 1 << 16, 300  # of a mark
_MALFORMED = (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError)
_MOST_PID, _MOST_TICKS = 1 << 22, 1 << 63  # of Linux
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START = 19  # field of /proc/PID/stat after the name: start in clock ticks since the boot


@dataclass(frozen=True, slots=True)
class Mark:
    """One process of a run.

    Attributes:
      role: its part in the run.
      name: distinguishes it from others of its role, such as a worker's name; may be empty.
      pid: its process id.
      start: its start in clock ticks since the boot; ``boot`` identifies the boot.
      state_dir: of the run.
      still: names of the activities that stand still, each with the Unix time since when.
      threads: names of its threads, by the number that stacks show, such as ``0x00007f12``.
    """

    role: Role
    name: str
    pid: int
    start: int
    boot: str
    state_dir: str
    still: tuple[tuple[str, float], ...] = ()
    threads: tuple[tuple[str, str], ...] = ()

    @property
    def stacks(self) -> Path:
        """The file that receives its stacks."""
        return Path(self.state_dir, _FOLDER, f"{self.pid}.stacks")

    @property
    def request(self) -> Path:
        """The file by which others request its stacks; the process removes it."""
        return Path(self.state_dir, _FOLDER, f"{self.pid}.request")

    @property
    def log(self) -> Path:
        """The file with its log; it does not exist if a process logs elsewhere."""
        of_role = {"trainer": "trainer", "rewards": "rewards", "host": f"host-{self.name}"}
        return Path(self.state_dir, "logs", f"{of_role.get(self.role, self.name)}.log")

    @property
    def who(self) -> str:
        """The process in words."""
        return f"{self.role} {self.name}".rstrip() + f" (pid {self.pid})"


class Announced:
    """The mark of this process, while it is in its file.

    Attributes:
      mark: as it is written at present.
      stacks: the open file that receives stacks.
      closed: True once the mark is removed.
    """

    def __init__(self, path: Path, mark: Mark, stacks: IO[bytes]):
        self._path, self.mark, self.stacks = path, mark, stacks
        self.closed = False

    def note(self, still: tuple[tuple[str, float], ...]) -> None:
        """Writes which activities stand still, and the names of threads, if anything has changed.

        A disk that rejects it changes nothing else.
        """
        numbered = ((f"{one.ident or 0:#018x}", one.name) for one in threading.enumerate())
        threads = tuple(sorted(numbered)[:_MOST_THREADS])
        if not self.closed and (still, threads) != (self.mark.still, self.mark.threads):
            mark = dataclasses.replace(self.mark, still=still, threads=threads)
            with suppress(OSError):
                _write(self._path, mark)
                self.mark = mark


@contextmanager
def announced(state_dir: Path, role: Role, name: str = "") -> Iterator[Announced | None]:
    """Leaves the mark of this process in a run's state directory, within ``with``.

    Yields:
      The mark; None if the directory cannot be written, which is no reason to end.
    """
    folder = state_dir / _FOLDER
    path = folder / f"{os.getpid()}.json"
    made: Announced | None = None
    answering: Answering | None = None
    with suppress(OSError):
        make_private(folder)
        for other in marks(state_dir):  # its predecessors; of one worker there may be thousands
            if (other.role, other.name) == (role, name) and not lives(other):
                forget(state_dir, other.pid)
        start, boot = started(os.getpid()), boot_id()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        stacks_path = folder / f"{os.getpid()}.stacks"
        stacks = os.fdopen(os.open(stacks_path, flags, 0o600), "ab", buffering=0)
        mark = Mark(role, name, os.getpid(), start, boot, str(state_dir))
        mark.request.unlink(missing_ok=True)  # of an earlier process with this pid
        answering = Answering(mark.request, stacks.fileno())
        _write(path, mark)
        made = Announced(path, mark, stacks)
    try:
        yield made
    finally:
        if answering is not None:
            answering.end()
        # Both are left by a process that is killed, for a post mortem.
        with suppress(OSError):
            path.unlink()
            if made is not None:
                made.closed = True
                made.mark.stacks.unlink()
                made.mark.request.unlink(missing_ok=True)


def marks(state_dir: Path) -> list[Mark]:
    """Returns the marks of living and of killed processes of a run, without malformed ones."""
    found = []
    for path in sorted((state_dir / _FOLDER).glob("*.json")):
        with suppress(*_MALFORMED):
            found.append(_of_json(json.loads(tail(path, _MOST_BYTES)), state_dir))
    return found


def forget(state_dir: Path, pid: int) -> None:
    """Removes the mark of a process that has ended, and its stacks."""
    for name in (f"{pid}.json", f"{pid}.stacks", f"{pid}.request"):
        with suppress(OSError):
            (state_dir / _FOLDER / name).unlink()


def forget_ended(state_dir: Path) -> None:
    """Removes the marks of processes that have ended, when another process takes up the run."""
    for mark in marks(state_dir):
        if not lives(mark):
            forget(state_dir, mark.pid)


def lives(mark: Mark) -> bool:
    """True if the process of a mark has not ended, on this machine."""
    try:
        return (
            boot_id() == mark.boot
            and started(mark.pid) == mark.start
            and state(mark.pid) not in ("Z", "X")
        )
    except (OSError, ValueError, IndexError):
        return False


def boot_id() -> str:
    """Returns the identity of this machine's present boot and of the namespace of its pids."""
    return f"{_BOOT.read_text().strip()} {os.stat('/proc/self/ns/pid').st_ino}"


def is_of_here(mark: Mark) -> bool:
    """True if this process could see the process of a mark, if it lived."""
    with suppress(OSError):
        return mark.boot == boot_id()
    return False


def started(pid: int) -> int:
    """Returns the start of a process, in clock ticks since the boot.

    Raises:
      OSError: there is no such process.
    """
    return int(_stat(pid)[_START])


def state(pid: int) -> str:
    """Returns the kernel's letter for the state of a process; T: it is stopped, Z: it has ended.

    Raises:
      OSError: there is no such process.
    """
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    # The name, in brackets, may contain anything.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _write(path: Path, mark: Mark) -> None:
    temporary = path.with_suffix(".new")
    with suppress(FileNotFoundError):
        temporary.unlink()
    with temporary.open("x") as file:
        json.dump(asdict(mark), file)
    os.replace(temporary, path)


def _of_json(said: dict[str, Any], state_dir: Path) -> Mark:
    texts = [said[name] for name in ("role", "name", "boot")]
    numbers = [said["pid"], said["start"]]
    if not all(isinstance(text, str) for text in texts) or said["role"] not in get_args(Role):
        raise ValueError("not a mark")
    if "/" in said["name"]:
        raise ValueError("a name that would lead elsewhere")
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise ValueError("not a mark")
    if said["pid"] > _MOST_PID or said["start"] > _MOST_TICKS:
        raise ValueError("no process has such numbers")
    still = tuple((one_line(str(what)), float(since)) for what, since in said["still"])
    if not all(0 <= since <= NOW_MOST for _, since in still):
        raise ValueError("not a time")
    threads = tuple(
        (one_line(str(number)), one_line(str(name))) for number, name in said["threads"]
    )
    return Mark(
        role=said["role"],
        name=one_line(said["name"]),
        pid=said["pid"],
        start=said["start"],
        boot=said["boot"],
        state_dir=str(state_dir),
        still=still,
        threads=threads,
    )
