"""The short runs that a plan is fitted to; one that is complete is not repeated."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.observed import WARM, Observed, observed
from rlax_plugin.commands.plan.usage import Usage, UsageMeter
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.errors import CommandError, ConfigError
from rlax_plugin.metrics.file import NAME
from rlax_plugin.processes.python import python_command
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.private import make_private
from rlax_plugin.text.failures import failure
from rlax_plugin.text.harmless import one_line
from rlax_plugin.text.secrets import hidden

_LOOK_S = 0.25
_END_S = 60.0  # of a run that is interrupted
_TAIL = 65_536  # bytes of a log
_MAXTEXT = "maxtext"
_WARM_START = "prepared/warm_start"  # in the directory of a run, see rlax.trainer.warm_start
_INTERRUPTED = (130, -signal.SIGINT)  # exit statuses of ``rlax train``

# What has no part in the time of a step, takes some beside it, or belongs to the config's own runs.
_QUIET = (
    "rlax.trackers=[]",
    "rlax.observers=[]",
    "rlax.evaluation.problems=0",
    "rlax.state_dir=''",
    "rlax.weights.path=''",
    "rlax.weights.parameter_server=embedded",
    "rlax.network.port=0",
    "rlax.network.prometheus_port=null",
    # The figures of a worker come with its heartbeats; one that compiles may miss some.
    "rlax.deadlines.heartbeat_s=1",
    "rlax.deadlines.heartbeats_lost=30",
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Makes the short runs.

    Attributes:
      config, overrides: of the user.
      rows: see ``given``.
      out: the folder for the runs, absolute.
      steps: of each run; the first ``warm`` of them do not count.
      tell: receives the progress: a description, and the newest step.
      first: name of the run that is made first; the others use its warm start, if it has one.
        "": there is none.
    """

    config: str
    overrides: tuple[str, ...]
    rows: int
    out: Path
    steps: int
    warm: int
    tell: Callable[[str, int], None]
    first: str = ""

    def arguments(self, one: Arrangement) -> list[str]:
        """Returns the arguments of the run of an arrangement."""
        found = [*self.overrides, *_QUIET, *one.overrides(self.rows), f"run_name={one.name}"]
        found.append(f"base_output_directory={json.dumps(str(self.out))}")
        section = resolve(self.config, [*found, f"steps={self.steps}"]).section
        found.append(f"steps={self.steps * section.objective.updates_per_step}")
        if section.trainer.plain_name == _MAXTEXT:
            found.append("enable_checkpointing=false")
            if self.first and one.name != self.first:
                found += self._warm_start(section.trainer.options.get("warm_start"))
        return found

    def _warm_start(self, options: Any) -> list[str]:
        """Returns the argument with which a run uses the warm start of the first one."""
        wanted = isinstance(options, dict) and options.get("enabled")
        directory = self.out / self.first / _WARM_START
        if not wanted or options.get("directory") or not directory.is_dir():
            return []
        record = _read(self.out / f"{self.first}.json")
        if record is None or _usage(record.get("usage")) is None:
            return []
        return [f"rlax.trainer.warm_start.directory={json.dumps(str(directory))}"]

    def resolved(self, one: Arrangement) -> ResolvedConfig:
        """Returns the config of the run of an arrangement."""
        return resolve(self.config, self.arguments(one))

    def measure(self, one: Arrangement) -> Observed:
        """Runs the config in an arrangement, unless that was done before.

        Raises:
          ConfigError: the folder has a run of that name of another config.
          CommandError: the run has failed.
        """
        directory, record = self.out / one.name, self.out / f"{one.name}.json"
        digest = _digest(self.resolved(one))  # first, so that the secrets of the config are known
        wanted = {"arguments": list(map(hidden, self.arguments(one))), "digest": digest}
        found = _read(record)
        if found is not None:
            _check_same(self.out, one.name, found, wanted)
        usage = None if found is None else _usage(found.get("usage"))
        if usage is None:
            if found is None and directory.exists():
                reason = f"has a folder {one.name} that is no run of a plan: name another folder"
                raise ConfigError("--out", str(self.out), reason)
            shutil.rmtree(directory, ignore_errors=True)  # of a run that was interrupted
            make_private(self.out)
            record.write_text(json.dumps(wanted))
            usage = self._run(one, directory)
            record.write_text(json.dumps(wanted | {"usage": usage}))
        return observed(str(directory), one, usage, self.warm)

    def _run(self, one: Arrangement, directory: Path) -> Usage:
        """Runs ``rlax train`` to its end; each of its own waits has a deadline."""
        log, meter = self.out / f"{one.name}.log", UsageMeter(directory, self.warm)
        command = python_command("-m", "rlax_plugin", "train", self.config)
        command += [*self.arguments(one), "--with-parent"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
            try:
                while (status := _ended(process)) is None:
                    step = _lines(directory / NAME)
                    meter.look(step)
                    self.tell(one.name, step)
            except BaseException:  # Ctrl-C reaches the run too, as it is of the same group
                process.terminate()
                if _ended(process, _END_S) is None:
                    process.kill()
                raise
        if status in _INTERRUPTED:  # this process may be deaf to Ctrl-C: a shell's background job
            raise KeyboardInterrupt
        if status:
            output = log.read_bytes()[-_TAIL:].decode(errors="replace")
            raise CommandError("train", status, failure(output, status, str(log)))
        return meter.take()


def warm_steps(resolved: ResolvedConfig) -> int:
    """Returns the number of steps that do not count, among them those in which the policy rests."""
    rests = [one.options.get("warm_up_steps", 0) for one in resolved.section.signals]
    return WARM + max((one for one in rests if isinstance(one, int)), default=0)


def _ended(process: subprocess.Popen[bytes], wait_s: float = _LOOK_S) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(wait_s)
    return None


def _lines(path: Path) -> int:
    """Returns the number of steps that a run has written."""
    with suppress(FileNotFoundError):
        return path.read_bytes().count(b"\n")
    return 0


def _digest(resolved: ResolvedConfig) -> str:
    return hashlib.sha256(resolved.to_yaml()).hexdigest()


def _read(record: Path) -> dict[str, Any] | None:
    files = RunFiles(record.parent)
    found = files.get_json(record.name)
    return found if isinstance(found, dict) else None


def _usage(found: Any) -> Usage | None:
    """Returns what a record says of the processes; None if its run was not complete."""
    whole = isinstance(found, list) and len(found) == len(Usage._fields)
    return Usage(*found) if whole and all(isinstance(one, float) for one in found) else None


def _check_same(out: Path, name: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Checks that a run was made with the same config.

    Raises:
      ConfigError: names what differs.
    """
    before, now = found.get("arguments"), wanted["arguments"]
    if before == now and found.get("digest") == wanted["digest"]:
        return
    changed = [one for one in now if not isinstance(before, list) or one not in before]
    what = f"with {', '.join(changed)}" if changed and before else "after a change of the config"
    reason = (
        f"has the run {name}, which was not made {what}: remove this folder, or name another one"
    )
    raise ConfigError("--out", str(out), one_line(reason))
