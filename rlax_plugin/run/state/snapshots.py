"""Snapshots: the controller's state beside each checkpoint of the trainer, and the pass rates.

The pass rates are in a separate file, ``controller/<step>.pass_rates.parquet``, in the format of
all tables of pass rates, so that another run can begin with it. It is written first, and the
document ``controller/<step>.json`` has its size and checksum, and a checksum of its own.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlax_plugin.base.errors import RlaxError, TrainingError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.files.seals import checksum, sealed, unsealed
from rlax_plugin.base.types import Prompt
from rlax_plugin.data.curation import pass_rate_files as rate_files
from rlax_plugin.data.curation.pass_rate_files import About
from rlax_plugin.data.curation.pass_rate_table import RateColumns
from rlax_plugin.data.prompts.ids import domains_of, ids_of

_DIRECTORY = "controller"


class SnapshotError(TrainingError):
    """A file of a snapshot is missing or damaged."""


def snapshot_name(step: int) -> str:
    """Returns the file name of the controller's state beside a step's checkpoint."""
    return f"{_DIRECTORY}/{step:08d}.json"


def rates_name(step: int) -> str:
    """Returns the file name of the pass rates that belong to a snapshot."""
    return f"{_DIRECTORY}/{step:08d}.pass_rates.parquet"


def snapshot_steps(files: RunFiles) -> list[int]:
    """Returns the steps of all existing snapshots, ascending."""
    stems = (name.removesuffix(".json") for name in files.names(_DIRECTORY))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def snapshot(
    step: int,
    segment: int,
    checksum: str,
    run_state: Mapping[str, Any],
    metrics: Mapping[str, float] | None = None,
    observers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the document for ``read_snapshot``: a run state, and its place in the journal.

    Args:
      metrics: those of the step that are known before its checkpoint, in case the process ends
        before the rest arrives.
      observers: their states, see ``run.controller.observers``.
    """
    where = {"step": step, "segment": segment, "checksum": checksum}
    more = {"metrics": metrics, "observers": observers}
    contents = {name: dict(content or {}) for name, content in more.items()}
    return {**where, **contents, "run_state": dict(run_state)}


def write_snapshot(
    files: RunFiles,
    document: Mapping[str, Any],
    rates: RateColumns,
    prompts: Sequence[Prompt],
    about: About,
) -> None:
    """Writes a snapshot; blocking, a second or two for a million prompts.

    Args:
      document: of ``snapshot``.
      about: of the pass rates; their version is added.
    """
    data = pack_rates(rates, prompts, about)
    files.put(rates_name(document["step"]), data)
    known = {"bytes": len(data), "crc32c": checksum(data)}
    document = {**document, "pass_rates": known}
    files.put(snapshot_name(document["step"]), sealed(json.dumps(document)))


def remove_snapshot(files: RunFiles, step: int) -> None:
    """Removes both files; the document first, as it is invalid without the other."""
    files.delete(snapshot_name(step))
    files.delete(rates_name(step))


def read_document(files: RunFiles, step: int) -> dict[str, Any] | None:
    """Returns the document of a snapshot, without its pass rates; None if there is none.

    Raises:
      SnapshotError: it is damaged.
      RlaxError: it cannot be read.
    """
    name = snapshot_name(step)
    try:
        return unsealed(files.get(name))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SnapshotError(f"{files.location(name)} is damaged: {error}") from error


def read_snapshot(
    files: RunFiles, step: int, prompts: Sequence[Prompt]
) -> tuple[dict[str, Any], RateColumns]:
    """Returns the document and the pass rates of a step.

    Raises:
      SnapshotError: a file is missing or damaged.
      TrainingError: they are of other prompts.
      RlaxError: a file cannot be read.
    """
    document = read_document(files, step)
    if document is None:
        raise SnapshotError(
            f"the trainer resumed at step {step}, but {files.location(snapshot_name(step))} is "
            "missing: without the controller's state prompts would repeat"
        )
    where, known = files.location(name := rates_name(step)), document["pass_rates"]
    try:
        data = files.get(name)
    except FileNotFoundError:
        raise SnapshotError(f"{where} is missing: the snapshot of step {step} needs it") from None
    if len(data) != known["bytes"] or checksum(data) != known["crc32c"]:
        raise SnapshotError(f"{where} is not the file that belongs to the snapshot of step {step}")
    return document, unpack_rates(data, where, prompts)


def pack_rates(rates: RateColumns, prompts: Sequence[Prompt], about: About) -> bytes:
    """Returns a file with the pass rates of all measured prompts."""
    rows = np.flatnonzero(rates.version_n >= 0)
    columns = {
        "id": ids_of(prompts, rows),
        "index": rows,
        "domain": domains_of(prompts, rows),
        "passed": rates.passed_n[rows],
        "failed": rates.failed_n[rows],
        "version": rates.version_n[rows],
        "groups": rates.groups_n[rows],
        "streak": rates.streak_n[rows],
    }
    about = dataclasses.replace(about, version=rates.version)
    return rate_files.packed(rate_files.measured(columns, about))


def unpack_rates(data: bytes, name: str, prompts: Sequence[Prompt]) -> RateColumns:
    """Returns the pass rates that ``pack_rates`` packed for the same prompts.

    Raises:
      TrainingError: the file is of other prompts.
      RlaxError: it is no such file.
    """
    rates = rate_files.unpacked(data, name)
    rows = rates.column("index")
    if rates.table.column("index").null_count or np.any(rows >= len(prompts)):
        raise RlaxError(f"{name} has rows of none of the {len(prompts):,} prompts")
    if not ids_of(prompts, rows).equals(rates.table.column("id")):
        raise TrainingError(f"{name} has other prompts than the prompt source has now")
    found = dataclasses.replace(RateColumns.empty(len(prompts)), version=rates.about.version)
    found.passed_n[rows], found.failed_n[rows] = rates.column("passed"), rates.column("failed")
    found.version_n[rows], found.groups_n[rows] = rates.column("version"), rates.column("groups")
    found.streak_n[rows] = rates.column("streak")
    return found
