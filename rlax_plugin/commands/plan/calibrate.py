"""The short runs that a plan is fitted to; one that is complete is not repeated."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.observed import Observed, observed
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.config.yaml_values import dumped
from rlax_plugin.errors import ConfigError
from rlax_plugin.records.files import RunFiles
from rlax_plugin.scripting.handle import Run
from rlax_plugin.scripting.processes import Started
from rlax_plugin.start.run_directory import run_directory
from rlax_plugin.text.harmless import one_line

_BEAT_S = 1.0  # between the figures of a worker
_SILENT_BEATS = 30  # a worker that compiles may miss some

# What has no part in the time of a step, or takes some beside it that is not its own.
_QUIET = ("rlax.trackers=[]", "rlax.evaluation.problems=0")
_MAXTEXT = "maxtext"


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
        found.append(_measured(resolved, one, out, name, show))
    return found


def name_of(one: Arrangement) -> str:
    """Returns the name of the run of an arrangement."""
    stale = f"j{one.reload_every}-k{one.max_staleness}"
    return f"workers{one.workers}-slots{one.slots}-parts{one.parts}-{stale}"


def _measured(
    resolved: ResolvedConfig, one: Arrangement, out: Path, name: str, show: bool
) -> Observed:
    directory, written = run_directory(resolved.maxtext), out / f"{name}.yml"
    content = dumped(resolved.content)
    if _complete(directory):
        if not written.exists() or written.read_text() != content:
            reason = f"has the run {name} of another config: remove it, or name another folder"
            raise ConfigError("--out", str(out), reason)
        return observed(directory, one)
    out.mkdir(parents=True, exist_ok=True)
    written.write_text(content)
    run = Run(directory, config=resolved, started=Started(written, out / f"{name}.log"))
    try:
        run.wait(show=show and sys.stdout.isatty())
    except BaseException:
        run.stop()
        raise
    return observed(directory, one)


def _complete(directory: str) -> bool:
    summary: Any = RunFiles(directory).get_json("summary.json")
    return isinstance(summary, dict) and bool(summary.get("complete"))
