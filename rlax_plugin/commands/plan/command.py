"""From a config to its plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from rlax_plugin.build import registry_for
from rlax_plugin.commands import check
from rlax_plugin.commands.plan.arrangement import calibrations, candidates, given
from rlax_plugin.commands.plan.calibrate import measure
from rlax_plugin.commands.plan.model import fit
from rlax_plugin.commands.plan.observed import LEAST, WARM
from rlax_plugin.commands.plan.ranking import Plan, plan
from rlax_plugin.config.loading import resolve
from rlax_plugin.errors import ConfigError
from rlax_plugin.records.files import RunFiles
from rlax_plugin.start.run_directory import run_directory

_GIB = 1 << 30
_USUAL = ("1,1", "1,2")


def staleness_pairs(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Reads pairs such as ``1,2``.

    Raises:
      ConfigError: one is no pair, or k is smaller than j.
    """
    found = []
    for text in texts:
        parts = text.split(",")
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
            raise ConfigError("--staleness", text, "must be a pair j,k such as 1,2")
        j, k = map(int, parts)
        if not 1 <= j <= k:
            raise ConfigError("--staleness", text, "must be a pair j,k with 1 <= j <= k")
        found.append((j, k))
    return found


def make(
    config: str,
    overrides: Sequence[str],
    *,
    workers: int | None,
    staleness: Sequence[str] | None,
    memory_gib: float | None,
    steps: int,
    out: Path | None,
    show: bool,
) -> Plan:
    """Measures a config in a few arrangements, and ranks all others by a model of its steps.

    Args:
      workers: most workers; None: as many as cores, or as the config has.
      staleness: pairs j,k besides that of the config; None: 1,1 and 1,2, if it may have them.
      memory_gib: that all processes may use; None: all of this machine.
      steps: of each measured run.
      out: folder for the measured runs; None: beside those of the config.
      show: True to show the progress.

    Raises:
      ConfigError: a setting or the config is wrong.
      CommandError: a measured run has failed.
    """
    if steps < WARM + LEAST:
        raise ConfigError("--steps", steps, f"must be at least {WARM + LEAST}")
    asked = staleness_pairs(_USUAL if staleness is None else staleness)
    resolved = resolve(config, overrides)
    check.examine(resolved, registry_for(resolved.section))
    base, rows = given(resolved)
    pairs, left_out = [base.staleness], ""
    for pair in asked:
        try:
            stale = replace(base, reload_every=pair[0], max_staleness=pair[1])
            tried = resolve(config, [*overrides, *stale.overrides(rows)])
            check.examine(tried, registry_for(tried.section))
            pairs.append(pair)
        except ConfigError as error:
            if staleness is not None:
                raise
            left_out = f"(j, k) = {pair} is left out: {error}"
    pairs = list(dict.fromkeys(pairs))
    on_cpu = resolved.maxtext.get("hardware") == "cpu"
    cores = len(os.sched_getaffinity(0)) if on_cpu else 0
    most = workers or max(base.workers, cores)
    if out is None:
        files = RunFiles(run_directory(resolved.maxtext))
        if not files.is_local:
            raise ConfigError("--out", "", f"names a local folder; runs are in {files.url}")
        out = Path(f"{files.location()}-plan")
    short = calibrations(base, rows, most, pairs)
    measured = measure(config, overrides, short, rows, out.absolute(), steps, show)
    rollouts = resolved.section.rollouts
    model = fit(measured, cores=cores, longest=rollouts.max_new_tokens)
    samples = rollouts.groups_per_step * rollouts.group_size
    among = list(candidates(base, rows, most, pairs, samples))
    memory = psutil.virtual_memory().total if memory_gib is None else memory_gib * _GIB
    return plan(model, measured, base, among, memory, rows, left_out)
