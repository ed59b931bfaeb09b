"""Looks at the processes of a run for what they have of the trainer and should not have.

A process shows its parent's descriptors from its fork until its program starts, so that something
counts as found only if it is seen again a while later.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_AGAIN_S = 0.3  # after which something that is still there does not belong to the fork
_WITNESS_BYTES = 16  # of the memory that a reward process shares with the trainer
# It has ended, or belongs to a sandbox, which hides its processes from all but root.
_HIDDEN = (FileNotFoundError, ProcessLookupError, PermissionError, psutil.Error)
_FORBIDDEN = re.compile(r"/(ledger\.sqlite[^/]*|\.lock|[^/]*\.token)$")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One of ``/proc/PID/fd``.

    Attributes:
      target: such as ``/dev/null`` or ``socket:[4711]``.
      flags: that it was opened with.
      size: in bytes, of a file.
    """

    number: int
    target: str
    flags: int
    size: int


@dataclass
class Inheritance:
    """What the descendants of a process have inherited; ``look`` again and again.

    Args:
      trainer: its id.
      secrets: texts that may occur neither in their environments nor in their command lines.

    Attributes:
      kinds: modules and commands of the processes that were seen.
      found: sentences on what was found, each once.
    """

    trainer: int
    secrets: Sequence[str] = ()
    kinds: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)
    _seen: dict[tuple[int, float, str], float] = field(default_factory=dict)

    def look(self) -> None:
        """Looks at all processes that there are now; those that end meanwhile are left out."""
        with suppress(*_HIDDEN):
            root = psutil.Process(self.trainer)
            children = root.children(recursive=True)
            known = {self.trainer: list(descriptors(self.trainer))}
            for child in children:
                with suppress(*_HIDDEN):
                    known[child.pid] = list(descriptors(child.pid))
            for child in children:
                with suppress(*_HIDDEN):
                    self._look_at(child, known)

    def _look_at(self, child: psutil.Process, known: dict[int, list[Descriptor]]) -> None:
        if not (command := child.cmdline()):
            return  # it has ended
        self.kinds.add(kind := _kind(command))
        said = [*_misplaced(child, known, self.trainer), *self._told(child, command)]
        now = time.monotonic()
        for text in said:
            first = self._seen.setdefault((child.pid, child.create_time(), text), now)
            if now - first >= _AGAIN_S:
                self.found.add(f"{kind}: {text}")

    def _told(self, child: psutil.Process, command: Sequence[str]) -> Iterator[str]:
        environment = Path(f"/proc/{child.pid}/environ").read_bytes()
        for number, secret in enumerate(self.secrets):
            if secret.encode() in environment:
                yield f"secret {number} is in the environment"
            if any(secret in word for word in command):
                yield f"secret {number} is in the command line"


def descriptors(pid: int) -> Iterator[Descriptor]:
    """Those of a process of the same user."""
    directory = Path(f"/proc/{pid}/fd")
    for name in os.listdir(directory):
        with suppress(*_HIDDEN):
            target = os.readlink(directory / name)
            about = Path(f"/proc/{pid}/fdinfo/{name}").read_text()
            flags = int(about.split("flags:")[1].split()[0], 8)
            yield Descriptor(int(name), target, flags, os.stat(directory / name).st_size)


def listening() -> set[str]:
    """Sockets of this machine that listen, as ``/proc/PID/fd`` names them."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found.add(f"socket:[{fields[9]}]")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000:
            found.add(f"socket:[{fields[6]}]")
    return found


def _kind(command: Sequence[str]) -> str:
    if "-m" in command and command.index("-m") + 1 < len(command):
        module = command.index("-m") + 1
        return " ".join(command[module : module + (2 if command[module] == "rlax_plugin" else 1)])
    imported = re.search(r"from (rlax_plugin\S+) import main", " ".join(command))
    return imported[1] if imported else " ".join(command)


def _misplaced(
    child: psutil.Process, known: dict[int, list[Descriptor]], trainer: int
) -> Iterator[str]:
    """Sentences on the descriptors that it should not have."""
    theirs = {one.target for one in known[trainer]}
    family = {child.pid, *(p.pid for p in child.parents()), *(p.pid for p in child.children(True))}
    others = {one.target for pid, all in known.items() if pid not in family for one in all}
    waiting, direct = listening(), child.ppid() == trainer
    for one in known.get(child.pid, ()):
        standard, shared = one.number <= 2, one.target in theirs
        if _FORBIDDEN.search(one.target) and (shared or not standard):
            yield f"{one.number} is {one.target}"
        elif one.target in waiting and shared:
            yield f"{one.number} is a socket on which the trainer listens"
        elif one.target.startswith("socket:") and shared:
            yield f"{one.number} is a socket of the trainer"
        elif one.target.startswith("pipe:"):
            # Of its own pipe, which it may have moved, the trainer has the other end alone.
            own = direct and one.target not in others and _ends(known[trainer], one.target) == 1
            if not standard and (shared or one.target in others) and not own:
                yield f"{one.number} is a pipe of another process"
        elif one.target.startswith("/"):
            yield from _misplaced_file(one, standard=standard, shared=shared)


def _ends(those: Sequence[Descriptor], pipe: str) -> int:
    """How many ends of a pipe are among the descriptors: 0, 1 or 2."""
    return len({one.flags & os.O_ACCMODE for one in those if one.target == pipe})


def _misplaced_file(one: Descriptor, *, standard: bool, shared: bool) -> Iterator[str]:
    if one.target.startswith("/dev/"):
        return
    appends = one.flags & os.O_APPEND and one.flags & os.O_ACCMODE == os.O_WRONLY
    if one.target.endswith(".log"):
        if not (standard and appends):
            yield f"{one.number} is {one.target}, not opened to append"
    elif shared and not one.target.endswith(" (deleted)"):
        yield f"{one.number} is {one.target} of the trainer"
    elif shared and not standard and one.size != _WITNESS_BYTES:
        yield f"{one.number} is a deleted file of {one.size} bytes of the trainer"
