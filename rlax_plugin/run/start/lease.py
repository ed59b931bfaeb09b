"""The lease of a run's directory: one trainer writes there, on whatever machine it is.

The directory has a file ``lease/<number>.json``, which says who holds it. A process that takes
over creates the next number, which only one can do, and removes the earlier ones. It may take over
if the holder has ended, or if that file has not changed for ``STALE_S`` by the clock of the process
that waits; clocks of machines are never compared.

The holder writes its file every ``EVERY_S``, and reads it before it writes anything else into the
directory. If its file is missing or is another's, then another process has taken over while this
one was frozen, or the directory was removed or moved: it ends, and writes nothing more.

Creating is exclusive on local disks, GCS and S3. On a file system of fsspec that has no conditional
writes, two processes may create the same number at the same moment: then the first of them finds
the other's file before it writes.
"""

from __future__ import annotations

import errno
import glob
import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.status_file import last_status
from rlax_plugin.run.start.holder import (
    described,
    has_ended_here,
    holder,
    living_here,
    this_process,
)
from rlax_plugin.run.start.run_directory import locked, usual_state_directory

log = logging.getLogger("rlax.controller")

FOLDER = "lease"
EVERY_S = 10.0
STALE_S = 6 * EVERY_S
"""A file may come late: an object store repeats failed writes, and code may hold the GIL."""

_LOOK_S = 2.0
_END_S = 10.0  # for the last file to be written
_DELETED = " (deleted)"  # as the kernel marks a path


class LostLeaseError(RlaxError):
    """Another process has taken the run's directory over."""


class Lease:
    """The lease that this process holds, and the thread that renews it.

    Args:
      files: the run's directory.
      number: of the file that this process has created.
      record: its content.

    Attributes:
      on_lost: called on the thread when the lease is lost.
    """

    def __init__(self, files: RunFiles, number: int, record: dict[str, Any]):
        self._files = RunFiles(files.location(), makes_root=False)
        self._number, self._record = number, record
        self.on_lost: Callable[[], object] = lambda: None
        self._lost: RlaxError | None = None
        self._seen_s = time.monotonic()  # when the file was this process's
        # Nobody may look at the file between its renewal and the search for a higher number.
        self._looking = threading.Lock()
        # By which a directory is known that has another path, or none.
        self._directory = os.open(files.location(), os.O_RDONLY) if files.is_local else None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlax-lease", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """True once it is known that another process has the directory, or that it is gone."""
        return self._lost is not None

    def check(self, age_s: float = 0.0) -> None:
        """Checks that this process holds the lease; blocks while it reads.

        Args:
          age_s: does not read if this was true not longer ago.

        Raises:
          LostLeaseError: another process does.
          ConfigError: the directory was removed or moved.
          RlaxError: the lease cannot be read.
        """
        if self._lost is None and time.monotonic() - self._seen_s >= age_s:
            with self._looking:
                self._look()
        if self._lost is not None:
            raise self._lost

    def check_known(self) -> None:
        """Like ``check``, but asks no object store, which may hang."""
        self.check(0.0 if self._files.is_local else math.inf)

    def close(self) -> None:
        """Ends the thread, and notes in the file that its process has ended."""
        self._ended.set()
        try:
            on_daemon(self._release, "rlax-lease-end").result(_END_S)
        except TimeoutError:
            log.warning("the end of the lease was not written within %g s", _END_S)
        except (RlaxError, OSError) as error:
            log.warning("the end of the lease cannot be written: %s", error)
        if self._directory is not None:
            os.close(self._directory)

    def _release(self) -> None:
        self._thread.join()
        if self._lost is None:
            self._write({"ended": True})

    def _run(self) -> None:
        warned = False
        while not self._ended.wait(EVERY_S):
            try:
                self._write({"beats": self._record["beats"] + 1})
                warned = False
            except RlaxError as error:
                if self._lost is not None:
                    log.error("%s", error)
                    self.on_lost()
                    return
                if not warned:  # an outage, which ends the run if a record is due meanwhile
                    log.warning("the lease cannot be renewed: %s", error)
                warned = True

    def _write(self, news: dict[str, Any]) -> None:
        """Renews the file.

        Raises:
          RlaxError: the lease is lost, or the file cannot be read or written.
        """
        with self._looking:
            self._look()
            if self._lost is None:
                self._record |= news
                try:
                    self._files.put(_name(self._number), _bytes(self._record))
                except FileNotFoundError:
                    self._look()
                if max(_numbers(self._files), default=0) > self._number:
                    self._lost = self._reason()  # it was frozen between the two
        if self._lost is not None:
            raise self._lost

    def _look(self) -> None:
        now_s = time.monotonic()
        found = _read(self._files, self._number)
        if found is not None and found.record.get("incarnation") == self._record["incarnation"]:
            self._seen_s = now_s
        else:
            self._lost = self._reason()

    def _reason(self) -> RlaxError:
        # As an error of the config: a supervisor that starts the run again at once would make a
        # new directory in the place of the one that the user may still move back.
        url = self._files.location()
        place = self._place()
        newest = _newest(self._files) if place is None or place == os.path.realpath(url) else None
        if newest is not None:
            return LostLeaseError(
                f"{url} was taken over by {described(newest.record)}, as this process had not "
                f"renewed its lease for {STALE_S:g} s or more: this one has written nothing since "
                "and ends, and there is nothing to do if the other one trains"
            )
        name = Path(url).name
        if place is None or place == os.path.realpath(url) or place.endswith(_DELETED):
            reason = (
                f"{url} was removed while the run trained, and with it all records and "
                "checkpoints: the run ends, and the same command begins it again at step 1 unless "
                "you restore a copy first"
            )
        else:
            reason = (
                f"{url} was moved to {place} while the run trained: the run ends, its records and "
                "checkpoints are there, and the same command continues with them once that is "
                "moved back"
            )
        return ConfigError("run_name", name, reason)

    def _place(self) -> str | None:
        """Returns the present path of the directory that was opened; None: it is unknown."""
        try:
            return os.readlink(f"/proc/self/fd/{self._directory}")
        except OSError:  # an object store, or no Linux
            return None


@dataclass(frozen=True, slots=True)
class _Found:
    """A lease as it is found; the record is empty if it is malformed."""

    number: int
    record: dict[str, Any]

    def is_free(self, lock: str) -> bool:
        """True if its process is known to have ended.

        Args:
          lock: identity of the lock of this process, see ``locked``.
        """
        of_lock = bool(lock) and self.record.get("lock") == lock
        return self.record.get("ended") is True or of_lock or has_ended_here(self.record)


@contextmanager
def held(files: RunFiles, state_dir: Path, note: Callable[[str], object]) -> Iterator[Lease]:
    """Holds the run for this process: its state directory, and the lease of the run directory.

    From then on ``files`` checks the lease before it writes, and does not make the directory again.

    Args:
      note: called with one line if the holder may have been killed elsewhere, so that this takes
        up to ``STALE_S``.

    Raises:
      ConfigError: another process holds the run.
      RlaxError: the lease cannot be read or written.
    """
    with locked(state_dir) as lock:
        lease = _acquired(files, lock, note)
        files.before_write, files.makes_root = lease.check, False
        try:
            yield lease
        finally:
            lease.close()


def trainer_without(files: RunFiles) -> int | None:
    """Returns the id of a process that trains a run whose directory was removed, or emptied.

    Returns:
      None if none is known on this machine: its state directory is not the usual one, a local
      directory was moved and not removed, or it has ended.
    """
    if _numbers(files):
        return None
    if not files.is_local:
        process = holder(usual_state_directory(files))
        return None if process is None else process.pid
    there = os.path.realpath(files.location())
    # The trainer may have written this while all else was removed, so that the directory stayed.
    status = None
    with suppress(RlaxError):  # it is malformed
        status = last_status(Path(there))
    for link in glob.iglob("/proc/[0-9]*/fd/*"):  # of the directory that a lease keeps open
        with suppress(OSError):  # it is another user's, or has ended
            pid, opened = int(link.split("/")[2]), os.readlink(link)
            if opened == there + _DELETED or (status and (pid, opened) == (status.pid, there)):
                return pid
    return None


def trainer_here(files: RunFiles) -> int | None:
    """Returns the id of the process of this machine that holds the lease; None: there is none."""
    newest = _newest(files)
    if newest is None or newest.record.get("ended") is True:
        return None
    process = living_here(newest.record)
    return None if process is None else process.pid


def _acquired(files: RunFiles, lock: str, note: Callable[[str], object]) -> Lease:
    newest = _newest(files)
    if newest is not None and not newest.is_free(lock):
        newest = _outwaited(files, newest, lock, note)
    number = 1 if newest is None else newest.number + 1
    record = this_process() | {"lock": lock, "incarnation": secrets.token_hex(8), "beats": 0}
    if not files.create(_name(number), _bytes(record)):
        raise _is_held(files)
    numbers = _numbers(files)
    for earlier in (one for one in numbers if one < number):
        files.delete(_name(earlier))
    if max(numbers, default=0) > number:  # this process was frozen since it looked
        raise _is_held(files)
    return Lease(files, number, record)


def _outwaited(
    files: RunFiles, earlier: _Found, lock: str, note: Callable[[str], object]
) -> _Found | None:
    """Waits until a holder must be dead; returns the lease that is to be replaced.

    Raises:
      ConfigError: it lives.
    """
    note(
        f"the run is held by {described(earlier.record)}; if that was killed, this one continues "
        f"in {STALE_S:g} s"
    )
    until_s, pause = time.monotonic() + STALE_S, threading.Event()
    while time.monotonic() < until_s:
        pause.wait(_LOOK_S)
        newest = _newest(files)
        if newest is None or newest.is_free(lock):
            return newest
        if newest != earlier:
            raise _is_held(files)
    return earlier


def _is_held(files: RunFiles) -> ConfigError:
    newest = _newest(files)
    who = described({} if newest is None else newest.record)
    reason = f"{files.url} is already used by {who}: end that first, or choose another run_name"
    error = ConfigError("run_name", Path(files.url).name, reason)
    # As for ``locked``: the command may succeed later, and a supervisor tries it again.
    error.__cause__ = BlockingIOError(errno.EAGAIN, reason)
    return error


def _newest(files: RunFiles) -> _Found | None:
    """Returns the lease with the highest number; None: there is none."""
    for number in sorted(_numbers(files), reverse=True):
        if (found := _read(files, number)) is not None:  # else it was removed meanwhile
            return found
    return None


def _read(files: RunFiles, number: int) -> _Found | None:
    try:
        record = json.loads(files.get(_name(number)))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        record = None
    return _Found(number, record if isinstance(record, dict) else {})


def _numbers(files: RunFiles) -> list[int]:
    stems = (name.removesuffix(".json") for name in files.names(FOLDER))
    return [int(stem) for stem in stems if stem.isdecimal()]


def _name(number: int) -> str:
    return f"{FOLDER}/{number:08d}.json"


def _bytes(record: dict[str, Any]) -> bytes:
    return (json.dumps(record) + "\n").encode()
