"""All hosts of a trainer as processes of this machine (``--hosts N``), and their end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from rlax_plugin.config.loading import resolve
from rlax_plugin.errors import ConfigError
from rlax_plugin.processes.python import python_command
from rlax_plugin.records.files import RunFiles
from rlax_plugin.start.follower import ENDED, INTERRUPTED, log_file
from rlax_plugin.start.run_directory import make_directories, run_directory, state_directory
from rlax_plugin.start.signals import ending_signals
from rlax_plugin.text.command_lines import train_command
from rlax_plugin.text.terminal import console
from rlax_plugin.worker.serve import PARENT

_LOOK_S, _SAME_S = 0.1, 15.0
_FROZEN = 1.0  # times host_s, which JAX takes as well once the hosts have found each other
_GRACE = 1.4  # times host_s: JAX ends the survivors after at most 1.2
_LINES, _LONGEST_LINE, _TAIL_BYTES = 5, 200, 8192
_FAILED = 1


@dataclass(slots=True)
class _Host:
    """A process of the trainer.

    Attributes:
      ended_s: Unix time at which it was seen to have ended.
      killed: the reason for which this program killed it; "" if it did not.
      frozen_since_s: time.monotonic() at which it was first seen stopped; None while it runs.
    """

    index: int
    process: subprocess.Popen[bytes]
    log: Path
    ended_s: float | None = None
    killed: str = ""
    frozen_since_s: float | None = None

    @property
    def status(self) -> int | None:
        """Exit status; negative: the signal that ended it. None: it runs."""
        return self.process.returncode

    def ended(self) -> bool:
        """True once the process has ended."""
        if self.ended_s is None and self.process.poll() is not None:
            self.ended_s = time.time()
        return self.ended_s is not None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if not self.ended():
            self.process.send_signal(number)

    @property
    def frozen(self) -> bool:
        """True if the process is stopped by a signal."""
        try:
            return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def look_frozen_s(self) -> float:
        """Looks at the process; returns the seconds since it was first seen stopped; 0: it runs."""
        if not self.frozen:
            self.frozen_since_s = None
            return 0.0
        now_s = time.monotonic()
        if self.frozen_since_s is None:
            self.frozen_since_s = now_s
        return now_s - self.frozen_since_s

    def end_in_words(self) -> str:
        """The way in which it ended."""
        status = self.status
        if status is None:
            return "still runs"
        if status >= 0:
            return f"ended with status {status}"
        return f"was ended by {signal.Signals(-status).name}"


def train_on_hosts(
    config_path: str, overrides: Sequence[str], wanted: str | None, count: int
) -> int:
    """Trains with all hosts on this machine; returns the exit status.

    Raises:
      ConfigError: the config is wrong, or is not for several processes of this machine.
    """
    config = resolve(config_path, overrides)
    files = RunFiles(run_directory(config.maxtext))
    state_dir = state_directory(config.section, files)
    check_processor(config.maxtext, count)
    make_directories(files, state_dir, config.section, config.maxtext)
    command = ["train", config_path, *overrides]
    if wanted is not None:
        command += ["--from", wanted]
    status, lost = on_all_hosts(command, count, config.section.deadlines.host_s, state_dir)
    if lost:
        argv = (config_path, *overrides, "--hosts", str(count))
        console(sys.stderr).print(f"the run can be continued with:  {train_command(argv)}")
    return status


def check_processor(maxtext: Mapping[str, Any], count: int) -> None:
    """Checks that several processes of this machine can share what a config trains on.

    Raises:
      ConfigError: they cannot.
    """
    if (hardware := maxtext.get("hardware")) != "cpu":
        reason = (
            "starts processes that share this machine's processor, so hardware must be cpu, not "
            f"{hardware or 'the default, tpu'}. On accelerators start one process on each host, "
            "with --hosts, --host and --coordinator"
        )
        raise ConfigError("--hosts", count, reason)


def on_all_hosts(
    command: Sequence[str], count: int, host_s: float, state_dir: Path
) -> tuple[int, bool]:
    """Runs a command of ``rlax`` as all hosts of a trainer, until all have ended.

    Signals are passed on to host 0, which stops all hosts together. A host that is lost is named on
    standard error.

    Args:
      command: with the options of every host, but for those that tell the hosts apart.
      host_s: ``rlax.deadlines.host_s``.
      state_dir: with a directory ``logs``.

    Returns:
      The status of host 0, or 1 if a host was lost; and True if one was.
    """
    coordinator = f"127.0.0.1:{free_port()}"
    hosts: list[_Host] = []
    previous: dict[signal.Signals, Any] = {}
    try:
        for number in ending_signals():
            previous[number] = signal.signal(
                number, lambda n, _: [host.send(signal.Signals(n)) for host in hosts[:1]]
            )
        for index in range(count):
            options = ("--hosts", str(count), "--host", str(index), "--coordinator", coordinator)
            hosts.append(_start((*command, *options, "--with-parent"), index, state_dir))
        watch = _Watch(hosts, host_s, console(sys.stderr))
        return watch.until_the_end(), watch.lost
    finally:
        for host in hosts:
            host.send(signal.SIGKILL)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start(command: Sequence[str], index: int, state_dir: Path) -> _Host:
    """Starts a host; host 0 has the terminal, the others have a log each."""
    path = log_file(state_dir, index)
    environment = os.environ | {PARENT: str(os.getpid())}
    # Sessions of their own: a Ctrl-C is for this process, which passes it on to host 0.
    start = partial(
        subprocess.Popen,
        python_command("-m", "rlax_plugin", *command),
        env=environment,
        start_new_session=True,
    )
    if index == 0:
        return _Host(index, start(), path)
    with path.open("ab") as out:
        return _Host(index, start(stdin=subprocess.DEVNULL, stdout=out, stderr=out), path)


def free_port() -> int:
    """Returns a port of the loopback address that is free at this moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class _Watch:
    """Waits for all hosts, and ends those that are left when one was lost.

    Attributes:
      lost: True if a host ended, or had to be ended, in another way than by itself.
    """

    def __init__(self, hosts: Sequence[_Host], host_s: float, out: Console):
        self._hosts, self._host_s, self.console = hosts, host_s, out
        self.lost = False

    def until_the_end(self) -> int:
        """Waits until all hosts have ended; returns the status of the command."""
        first = self._first_end()
        # JAX aborts the others once it knows that one is lost.
        aborted = first.status == -signal.SIGABRT
        orderly = first.index == 0 and not (first.status or 0) < 0
        if not aborted and not orderly:
            self._tell_lost(first)
        for host in self._hosts if first.index else self._hosts[1:]:
            if orderly or host.index == 0:  # one that still looks for host 0 would go on
                host.send(signal.SIGTERM)
        self._wait_for_rest(crashed=(first.status or 0) < 0)
        if aborted:
            for host in [host for host in self._hosts if host.killed] or [first]:
                self._tell_lost(host)
        status = self._hosts[0].status
        assert status is not None, "all hosts have ended"
        return _FAILED if self.lost or status < 0 else status

    def _first_end(self) -> _Host:
        """Waits until host 0 has ended or another one failed; returns that one."""
        while True:
            for host in self._hosts[1:]:
                if host.ended() and host.status not in (0, INTERRUPTED, ENDED):
                    return self._hosts[0] if self._same_end(host) else host
            if self._hosts[0].ended():
                return self._hosts[0]
            for host in self._hosts:
                if host.look_frozen_s() > _FROZEN * self._host_s:
                    # JAX notices a host that has joined. Nobody else would notice one that starts.
                    self._kill(host)
                    return host
            time.sleep(_LOOK_S)

    def _same_end(self, host: _Host) -> bool:
        """True if host 0 ends with the same error, of the config for instance, and tells it."""
        end_s = time.monotonic() + min(_SAME_S, self._host_s)
        while (host.status or 0) > 0 and time.monotonic() < end_s:
            if self._hosts[0].ended():
                break
            time.sleep(_LOOK_S)
        return self._hosts[0].ended()

    def _wait_for_rest(self, *, crashed: bool) -> None:
        """Waits for the other hosts, and kills those that do not end.

        Args:
          crashed: True if a host did not end by itself.
        """
        end_s = time.monotonic() + _GRACE * self._host_s
        while not all(host.ended() for host in self._hosts) and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
            if crashed and all(host.ended() or host.frozen for host in self._hosts):
                break  # a stopped process will not end by itself
        for host in self._hosts:
            if not host.ended():
                self._kill(host)

    @staticmethod
    def _kill(host: _Host) -> None:
        was = "was stopped (SIGSTOP)" if host.frozen else "did not end by itself"
        host.killed = f"{was} and had to be killed"
        host.process.kill()
        host.process.wait()
        host.ended()

    def _tell_lost(self, host: _Host) -> None:
        self.lost = True
        when = time.strftime("%H:%M:%S", time.localtime(host.ended_s or time.time()))
        how = host.killed or host.end_in_words()
        pid = host.process.pid
        self.console.print(f"host {host.index} was lost: at {when} process {pid} {how}")
        for line in _last_lines(host.log):
            self.console.print(f"  {host.log.name}: {line}")


def _last_lines(path: Path) -> list[str]:
    """Returns the last lines of a log that say something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]
    return [line.strip()[:_LONGEST_LINE] for line in lines if line.strip()][-_LINES:]
