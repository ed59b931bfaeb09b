"""What a test started ends with it: processes, threads, and files in the temporary directory.

Tests of a file may share what they start, so it is looked at when the file ends. A process knows
its test: pytest keeps the name in ``PYTEST_CURRENT_TEST``, which children inherit, also those whose
parent has ended. Threads and files belong to the test after which they are seen first.
"""

import os
import shutil
import signal
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

_GRACE_S = 30.0  # what has been told to end may need this long on a busy machine
_LOOK_S = 0.01  # between two looks
_MARK = "RLAX_TEST_STARTED_BY"
_TEST = b"PYTEST_CURRENT_TEST="
# Names of what libraries and this project keep for as long as a process lives.
_KEPT_FILES = ("tfds", "wandb-artifacts", "wandb-media")  # ends of directories' names
_KEPT_THREADS = ("asyncio_", "metadata_store_", "rlax-jetstream")  # idle ones of pools
_KEPT_PROCESSES = ("tokens.template_process", "processes.limited_process")


class Leftovers:
    """What the tests of this process leave; it gives them a temporary directory of their own."""

    def __init__(self) -> None:
        os.environ[_MARK] = str(os.getpid())
        self._mark = f"{_MARK}={os.getpid()}\0".encode()
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # of tmp_path
        self._directory = tempfile.mkdtemp(prefix="rlax-tests-")
        os.chmod(self._directory, 0o1777)  # as the one that it stands for: other users write there
        os.environ["TMPDIR"] = tempfile.tempdir = self._directory
        self._known: set[object] = {*_pids(), *_threads()}
        self._first_seen: dict[object, str] = {}

    def close(self) -> None:
        tempfile.tempdir = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def after(self, test: str, *, ends_file: bool) -> list[str]:
        """What is left where a file ends, in words, each with its test; processes are killed."""
        for new in {*_threads(), *self._files()} - self._known:
            self._first_seen.setdefault(new, test)
        if not ends_file:
            return []
        end_s = time.monotonic() + _GRACE_S
        while (left := self._left(test)) and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        said = [f"{_described(what)} of {name}" for what, name in left.items()]
        for pid in left:
            if isinstance(pid, int):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._known.update(left)
        return said

    def _left(self, test: str) -> dict[object, str]:
        """Processes (by pid), threads and files (by path), and the test of each."""
        others = {*_threads(), *self._files()} - self._known
        left = {other: self._first_seen.get(other, test) for other in others}
        for pid in _pids() - self._known:
            if name := self._test_of(pid):
                left[pid] = name
        return left

    def _files(self) -> set[str]:
        names = os.listdir(self._directory)
        return {f"{self._directory}/{name}" for name in names if not name.endswith(_KEPT_FILES)}

    def _test_of(self, pid: int) -> str:
        """The test that started a process; empty if it is not of this pytest, kept, or ended."""
        with suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
            kept = any(name in _command(pid) for name in _KEPT_PROCESSES)
            if self._mark in environment and _TEST in environment and not kept:
                return environment.split(_TEST)[1].split(b"\0")[0].decode(errors="replace")
        return ""


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _threads() -> set[threading.Thread]:
    """Those that the end of this process would wait for."""
    threads = threading.enumerate()
    return {t for t in threads if not (t.daemon or t.name.startswith(_KEPT_THREADS))}


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return "ended meanwhile"


def _described(what: object) -> str:
    return f"process {what} ({_command(what)[:200]})" if isinstance(what, int) else repr(what)
