"""The short runs that a plan is fitted to; one that is complete is not repeated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.observed import Observed, observed
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.config.yaml_values import dumped
from rlax_plugin.errors import CommandError, ConfigError
from rlax_plugin.metrics import file
from rlax_plugin.processes.failures import failure
from rlax_plugin.records.files import RunFiles
from rlax_plugin.start.run_directory import run_directory
from rlax_plugin.text.harmless import one_line
from rlax_plugin.text.terminal import console, counting

_BEAT_S = 1.0  # between the figures of a worker
_SILENT_BEATS = 30  # a worker that compiles may miss some

# What has no part in the time of a step, or takes some beside it that is not its own.
_QUIET = ("rlax.trackers=[]", "rlax.evaluation.problems=0")
_MAXTEXT = "maxtext"
_LOOK_S = 1.0
_END_S = 60.0  # of a run that is interrupted
_TAIL = 65_536  # bytes of a log


def measure(
    config: str,
    overrides: Sequence[str],
    arrangements: Sequence[Arrangement],
    rows: int,
    out: Path,
    steps: int,
    show: bool,
) -> list[Observed]:
    """Runs a config in each arrangement for some steps, one after the other.

    Args:
      rows: see ``given``.
      out: folder for the runs.
      steps: of each run.
      show: True to show their progress.

    Raises:
      ConfigError: ``out`` has runs of another config.
      CommandError: a run has failed.
    """
    found: list[Observed] = []
    quiet = [*_QUIET, f"rlax.deadlines.heartbeat_s={_BEAT_S}"]
    quiet.append(f"rlax.deadlines.heartbeats_lost={_SILENT_BEATS}")
    if resolve(config, overrides).section.trainer.plain_name == _MAXTEXT:
        quiet.append("enable_checkpointing=false")
    for number, one in enumerate(arrangements, 1):
        name = name_of(one)
        arguments = [*overrides, *quiet, *one.overrides(rows), f"run_name={name}"]
        arguments.append(f"base_output_directory={out}")
        updates = resolve(config, arguments).section.objective.updates_per_step
        resolved = resolve(config, [*arguments, f"steps={steps * updates}"])
        if show:
            print(one_line(f"measuring {number} of {len(arrangements)}: {name}"), flush=True)
        found.append(_measured(resolved, one, out, name))
    return found


def name_of(one: Arrangement) -> str:
    """Returns the name of the run of an arrangement."""
    stale = f"j{one.reload_every}-k{one.max_staleness}"
    return f"workers{one.workers}-slots{one.slots}-parts{one.parts}-{stale}"


def _measured(resolved: ResolvedConfig, one: Arrangement, out: Path, name: str) -> Observed:
    directory, written = run_directory(resolved.maxtext), out / f"{name}.yml"
    content = dumped(resolved.content)
    if _complete(directory):
        if not written.exists() or written.read_text() != content:
            reason = f"has the run {name} of another config: remove it, or name another folder"
            raise ConfigError("--out", str(out), reason)
        return observed(directory, one)
    out.mkdir(parents=True, exist_ok=True)
    written.write_text(content)
    _run(written, RunFiles(directory), out / f"{name}.log")
    return observed(directory, one)


def _run(config: Path, files: RunFiles, log: Path) -> None:
    """Runs ``rlax train`` to its end; each of its own waits has a deadline.

    Raises:
      CommandError: it has failed.
    """
    command = [sys.executable, "-m", "rlax_plugin", "train", str(config), "--with-parent"]
    with log.open("wb") as out, counting(console(sys.stderr)) as progress:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(_LOOK_S)
                    break
                progress("step", _step(files))
        except BaseException:  # Ctrl-C reaches the run too, as it is of the same group
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    if status:
        output = log.read_bytes()[-_TAIL:].decode(errors="replace")
        raise CommandError("train", status, failure(output, status, str(log)))


def _step(files: RunFiles) -> int:
    """Returns the newest finished step of a run; 0: none."""
    return max(file.read(files.get(file.NAME)).by_step, default=0) if files.exists(file.NAME) else 0


def _complete(directory: str) -> bool:
    summary: Any = RunFiles(directory).get_json("summary.json")
    return isinstance(summary, dict) and bool(summary.get("complete"))
