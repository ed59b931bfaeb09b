"""Faults of what a run under chaos stands on: its network, disk, clocks and weight store.

- ``network``: one more worker, named ``far``, and a separate parameter server are reached through
  proxies only. A proxy delays all bytes or holds them back for a while; or it resets all open
  connections, or makes them half-open for good. It needs Linux, where 127.0.0.2 and 127.0.0.3 are
  addresses of the machine.
- ``disk``: all space of the file system of ``base_output_directory`` is taken at once. It needs a
  small one of its own, such as ``mount -t tmpfs -o size=256m none DIRECTORY``, and ``--out``
  elsewhere. The trainer may end then, and is started again; it must have named the full disk in its
  last line, without a traceback.
- ``store``: each call takes 200 ms longer, one in twenty fails (half of them only after they were
  carried out), both, or no writing and no reading returns. The time begins with the first call that
  suffers. It puts ``unreliable_store`` between the run and its own store, whichever that is.
- ``clock``: the clock of the trainer (with its reward processes and local workers), of a separate
  parameter server or of the far worker is 90 s ahead or behind. Clocks for durations are left
  alone, and the machine's clock is never touched. It needs ``pip install libfaketime``, and a
  trainer without MaxText.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from chaos import unreliable_store as unreliable
from chaos.blows import Blow, EventLog, Kind
from chaos.network import Connection, Proxy, ThreadedProxy
from rlax_plugin.errors import ConfigError
from rlax_plugin.processes.python import python_command
from rlax_plugin.records.faults import FaultPoint
from rlax_plugin.text.amounts import in_bytes

_DELAY_S, _JITTER_S = 0.2, 0.1
_CLOCK_S = 90
_LARGEST_DISK = 4 << 30  # bytes: a full disk must harm nobody else
_CHUNKS = (1 << 20, 1 << 12, 1)
_LIBRARIES = ("usr/lib/*/faketime/libfaketime.so.1", "usr/lib/faketime/libfaketime.so.1")
_TRY, _TRY_S = "import time; time.sleep(0.001); print(time.time())", 30.0


_OF_STORE: dict[Kind, tuple[FaultPoint, Sequence[str]]] = {
    "slow": (FaultPoint.STORE_SLOWED, [unreliable.SLOW]),
    "faulty": (FaultPoint.STORE_FAILED, [unreliable.FAULTY]),
    "slow and faulty": (FaultPoint.STORE_FAILED, [unreliable.SLOW, unreliable.FAULTY]),
    "hang": (FaultPoint.STORE_HUNG, [unreliable.WRITES_HANG, unreliable.READS_HANG]),
}
"""Kind -> the event of the first call that suffers, and the words of the switch."""


class Trouble(Protocol):
    """A fault that begins with a blow and ends with it."""

    def begin(self, blow: Blow) -> str:
        """Begins the fault; returns in words what is hit, or "" if nothing is there to hit yet.

        It is called until it returns something, or for so long that nothing will be there.
        """
        ...

    def end(self) -> None:
        """Ends the fault; without a fault it does nothing."""
        ...


class NetworkTrouble:
    """Faults of connections that pass through proxies.

    Args:
      proxies: name of a way through the network -> its proxy.
    """

    def __init__(self, proxies: dict[str, ThreadedProxy]):
        self._proxies = proxies

    def begin(self, blow: Blow) -> str:
        """See ``Trouble``."""
        names = sorted(name for name, one in self._proxies.items() if one.proxy.connections)
        if not names:
            return ""
        name = names[min(int(blow.choice * len(names)), len(names) - 1)]
        proxy = self._proxies[name]
        count = len(proxy.proxy.connections)
        if blow.kind == "delay":
            proxy.call(_change(delay_s=_DELAY_S, jitter_s=_JITTER_S))
        elif blow.kind == "stall":
            proxy.call(_change(stalled=True))
        elif blow.kind == "reset":
            proxy.call(_each(Connection.reset))
        else:
            proxy.call(_each(Connection.half_open))
        return f"{count} connections {name}"

    def end(self) -> None:
        """See ``Trouble``."""
        for proxy in self._proxies.values():
            proxy.call(_change(delay_s=0.0, jitter_s=0.0, stalled=False))


def _change(**conditions: Any) -> Callable[[Proxy], None]:
    return lambda proxy: proxy.change(**conditions)


def _each(what: Callable[[Connection], None]) -> Callable[[Proxy], None]:
    def all_of(proxy: Proxy) -> None:
        for connection in list(proxy.connections):
            what(connection)

    return all_of


class DiskTrouble:
    """A full disk: a file without a name takes the free space of a small file system.

    Args:
      folder: on that file system.

    Raises:
      ConfigError: the file system is large, so that other programs may use it.
    """

    def __init__(self, folder: Path):
        total = psutil.disk_usage(str(folder)).total
        if total > _LARGEST_DISK:
            reason = (
                f"is on a file system of {in_bytes(total)}, which --fault disk would fill: name "
                f"one of at most {in_bytes(_LARGEST_DISK)} that nothing else uses, for example "
                "after mount -t tmpfs -o size=256m none DIRECTORY"
            )
            raise ConfigError("base_output_directory", str(folder), reason)
        self._folder = folder
        self._filler: io.FileIO | None = None

    def begin(self, blow: Blow) -> str:
        """See ``Trouble``."""
        # Without a name, so that the space is free again however this process ends.
        self._filler = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        for size in _CHUNKS:
            with suppress(OSError):
                while self._filler.write(bytes(size)) == size:
                    pass
        return f"the disk of {self._folder}"

    def end(self) -> None:
        """See ``Trouble``."""
        if self._filler is not None:
            self._filler.close()


class ClockTrouble:
    """Clocks that differ from the machine's, by the library libfaketime.

    Args:
      folder: for the files that set the clocks.

    Raises:
      ConfigError: the library is not there.
    """

    def __init__(self, folder: Path):
        self._library, self._folder = _library(folder), folder
        self._files: dict[str, Path] = {}

    def environment(self, name: str) -> dict[str, str]:
        """Returns the variables that give a process, and those that it starts, one such clock.

        The clock that measures durations is left as it is.
        """
        path = self._files.setdefault(name, self._folder / f"clock-{name.replace(' ', '-')}")
        _write(path, 0)
        return _environment(self._library, path)

    def begin(self, blow: Blow) -> str:
        """See ``Trouble``."""
        names: Sequence[str] = sorted(self._files)
        name = names[min(int(blow.choice * len(names)), len(names) - 1)]
        _write(self._files[name], _CLOCK_S if blow.kind == "ahead" else -_CLOCK_S)
        return f"the clock of the {name}"

    def end(self) -> None:
        """See ``Trouble``."""
        for path in self._files.values():
            _write(path, 0)


class StoreTrouble:
    """A weight store that is slow, fails or hangs; see ``unreliable_store``.

    Args:
      switch: path of the file that makes it so.
      events: log of the fault points that the run reaches.
    """

    def __init__(self, switch: Path, events: Path):
        self._switch, self._log = switch, EventLog(events)

    def begin(self, blow: Blow) -> str:
        """See ``Trouble``; a call must have suffered."""
        point, words = _OF_STORE[blow.kind]
        if not self._switch.exists():
            self._log.take()
            unreliable.switch_on(self._switch, *words)
        return "the weight store" if point in self._log.take() else ""

    def end(self) -> None:
        """See ``Trouble``."""
        self._switch.unlink(missing_ok=True)


def _library(folder: Path) -> Path:
    """Returns a libfaketime that works; 0.9.10, which is widespread, lets no Python sleep."""
    found: list[Path] = []
    if (package := importlib.util.find_spec("libfaketime")) is not None and package.origin:
        found.append(Path(package.origin).parent / "vendor/libfaketime/src/libfaketime.so.1")
    found += [path for pattern in _LIBRARIES for path in sorted(Path("/").glob(pattern))]
    path = folder / "clock-tried"
    _write(path, _CLOCK_S)
    for library in found:
        with suppress(subprocess.TimeoutExpired):
            tried = subprocess.run(
                python_command("-c", _TRY),
                env=os.environ | _environment(library, path),
                capture_output=True,
                timeout=_TRY_S,
            )
            said = tried.stdout.split()
            if tried.returncode == 0 and said and float(said[0]) > time.time() + _CLOCK_S / 2:
                return library
    reason = (
        "needs a libfaketime with which this Python can sleep, newer than 0.9.10: "
        "pip install libfaketime"
    )
    raise ConfigError("--fault", "clock", reason)


def _environment(library: Path, path: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(path),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def _write(path: Path, seconds: int) -> None:
    beside = path.with_name(f"{path.name}.writing")
    beside.write_text(f"{seconds:+d}\n")
    os.replace(beside, path)
