"""From a config to its plan."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from rlax_plugin.build import registry_for
from rlax_plugin.commands import check
from rlax_plugin.commands.plan.arrangement import Arrangement, calibrations, candidates, given
from rlax_plugin.commands.plan.calibrate import Calibration, warm_steps
from rlax_plugin.commands.plan.model import fit
from rlax_plugin.commands.plan.observed import LEAST, Observed
from rlax_plugin.commands.plan.ranking import Plan, plan
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.records.files import RunFiles
from rlax_plugin.start.run_directory import run_directory

_GIB = 1 << 30
_USUAL = ("1,1", "1,2")


@dataclass(frozen=True, slots=True)
class Wishes:
    """The choices of the user.

    Attributes:
      workers: most workers; None: one for each CPU core, or as many as the config has.
      staleness: pairs such as ``1,2`` besides that of the config; None: 1,1 and 1,2, as far as the
        config may have them.
      memory_gib: that all processes may use; None: all of this machine.
      steps: of each measured run.
      out: folder for the measured runs; None: beside those of the config.
      tell: receives the progress, see ``Calibration``.
    """

    workers: int | None
    staleness: Sequence[str] | None
    memory_gib: float | None
    steps: int
    out: str | None
    tell: Callable[[str, int], None]


def make(config: str, overrides: Sequence[str], wishes: Wishes) -> Plan:
    """Measures a config in a few arrangements, and ranks all others by a model of its steps.

    Raises:
      ConfigError: a setting or the config is wrong.
      CommandError: a measured run has failed.
    """
    memory_bytes = _memory_bytes(wishes.memory_gib)
    asked = staleness_pairs(_USUAL if wishes.staleness is None else wishes.staleness)
    resolved = resolve(config, [*overrides, f"steps={wishes.steps}"])
    check.examine(resolved, registry_for(resolved.section))
    base, rows = given(resolved)
    warm = warm_steps(resolved)
    if wishes.steps < warm + LEAST:
        reason = f"must be at least {warm + LEAST}: the first {warm} do not count"
        raise ConfigError("--steps", wishes.steps, reason)
    cores = _cores(resolved)
    workers = wishes.workers or max(base.workers, cores)
    out = _folder(wishes.out, resolved)
    runs = Calibration(config, tuple(overrides), rows, out, wishes.steps, warm, wishes.tell)
    pairs, left_out = [base.staleness], []
    for pair in asked:
        try:
            stale = replace(base, reload_every=pair[0], max_staleness=pair[1])
            _examine(runs, stale)
            pairs.append(pair)
        except RlaxError as error:
            if wishes.staleness is not None:
                raise
            left_out.append(f"(j, k) = {pair} is left out: {error}")
    pairs = list(dict.fromkeys(pairs))
    short = calibrations(base, rows, workers, pairs)
    for one in short:
        _examine(runs, one)
    runs = replace(runs, first=short[0].name)
    measured: list[Observed] = []
    for one in short:
        if not measured or _needs(measured[0], one) <= memory_bytes:
            measured.append(runs.measure(one))
    rollouts = resolved.section.rollouts
    samples = rollouts.groups_per_step * rollouts.group_size
    among = list(candidates(base, rows, workers, pairs, samples))
    model = fit(measured, cores=cores)
    return plan(model, measured, base, among, memory_bytes, rows, left_out)


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


def _examine(runs: Calibration, one: Arrangement) -> None:
    resolved = runs.resolved(one)
    check.examine(resolved, registry_for(resolved.section))


def _needs(first: Observed, one: Arrangement) -> float:
    """Returns the memory that a run will need at least, by what the first one needed."""
    used = first.usage
    return used.trainer_bytes + one.workers * used.worker_bytes + used.other_bytes


def _memory_bytes(memory_gib: float | None) -> float:
    if memory_gib is None:
        return psutil.virtual_memory().total
    if not 0 < memory_gib < math.inf:
        raise ConfigError("--memory-gib", memory_gib, "must be a positive number")
    return memory_gib * _GIB


def _cores(resolved: ResolvedConfig) -> int:
    """Returns the cores that trainer and workers share; 0 if they compute on accelerators."""
    trainer, hardware = resolved.section.trainer.plain_name, resolved.maxtext.get("hardware")
    return len(os.sched_getaffinity(0)) if trainer != "maxtext" or hardware == "cpu" else 0


def _folder(out: str | None, resolved: ResolvedConfig) -> Path:
    if out is not None:
        if "://" in out:
            raise ConfigError("--out", out, "must be a folder of this machine")
        return Path(out).absolute()
    files = RunFiles(f"{run_directory(resolved.maxtext)}-plan")
    if not files.is_local:
        raise ConfigError("--out", "", "must be given, because the config's runs are not local")
    return Path(files.location()).absolute()
