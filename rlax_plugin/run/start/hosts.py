"""All hosts of a trainer as processes of this machine (``--hosts N``), and their end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.processes.python import python_command
from rlax_plugin.base.text.command_lines import train_command
from rlax_plugin.base.text.terminal import console
from rlax_plugin.config.loading import resolve
from rlax_plugin.run.programs.serve import PARENT
from rlax_plugin.run.start.follower import ENDED, INTERRUPTED, log_file
from rlax_plugin.run.start.run_directory import make_directories, run_directory, state_directory
from rlax_plugin.run.start.signals import ending_signals

_LOOK_S, _SAME_S = 0.1, 15.0
_GRACE = 1.4  # times host_s: JAX ends the survivors after at most 1.2
_LINES, _LONGEST_LINE, _TAIL_BYTES = 5, 200, 8192
_FAILED = 1


@dataclass(slots=True)
class _Host:
    """A process of the trainer.

    Attributes:
      killed: True if this program had to kill it.
    """

    index: int
    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False

    @property
    def status(self) -> int | None:
        """Exit status; negative: the signal that ended it. None: it runs."""
        return self.process.poll()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if self.status is None:
            self.process.send_signal(number)

    @property
    def failed(self) -> bool:
        """True if it has ended neither as host 0 ends nor because host 0 did."""
        return self.killed or self.status not in (None, 0, INTERRUPTED, ENDED)

    @property
    def aborted(self) -> bool:
        """True if JAX has ended it, because another one is lost."""
        return not self.killed and self.status == -signal.SIGABRT

    def end_in_words(self) -> str:
        """The way in which it ended."""
        status = self.status
        if self.killed or status is None:
            return "did not end by itself and had to be killed"
        return (
            f"was ended by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with status {status}"
        )


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
        lost, out = _lost_hosts(hosts, host_s), console(sys.stderr)
        for host in lost:
            who = f"host {host.index} was lost: process {host.process.pid}"
            out.print(f"{who} {host.end_in_words()}")
            for line in _last_lines(host.log):
                out.print(f"  {host.log.name}: {line}")
        status = hosts[0].status
        assert status is not None, "all hosts have ended"
        return _FAILED if lost or status < 0 else status, bool(lost)
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


def _lost_hosts(hosts: Sequence[_Host], host_s: float) -> list[_Host]:
    """Waits for all hosts, and ends those that are left when one has failed.

    Returns:
      Those to blame; none if host 0 has ended by itself, and so has said why.
    """
    zero, others = hosts[0], hosts[1:]
    while zero.status is None and not any(host.failed for host in others):
        time.sleep(_LOOK_S)
    if all((host.status or 0) >= 0 for host in hosts):
        # Host 0 may have the same error, and one that fails tells it.
        _wait(lambda: zero.status is not None, min(_SAME_S, host_s))
    orderly = zero.status is not None and zero.status >= 0
    for host in hosts if orderly else hosts[:1]:  # one that still looks for host 0 would go on
        host.send(signal.SIGTERM)
    _wait(lambda: all(host.status is not None for host in hosts), _GRACE * host_s)
    for host in hosts:
        if host.status is None:
            host.killed = True
            host.process.kill()
            host.process.wait()
    # Host 0 was asked to end, perhaps before it could catch the signal.
    failed = [h for h in hosts if h.failed and (h.index or h.status != -signal.SIGTERM)]
    by_themselves = [host for host in failed if not host.aborted and not host.killed]
    blamed = by_themselves or [host for host in failed if not host.aborted] or failed
    return [] if orderly else blamed


def _wait(over: Callable[[], bool], within_s: float) -> None:
    end_s = time.monotonic() + within_s
    while not over() and time.monotonic() < end_s:
        time.sleep(_LOOK_S)


def _last_lines(path: Path) -> list[str]:
    """Returns the last lines of a log that say something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]
    return [line.strip()[:_LONGEST_LINE] for line in lines if line.strip()][-_LINES:]
