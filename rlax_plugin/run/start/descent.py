"""``rlax train --from``: the run whose weights a run starts from, and the record of it.

The record is ``descent.json`` in the new run's directory. It holds as long as the run exists: to
continue the run, ``--from`` is not needed again, and a different value is an error.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles, holds_results
from rlax_plugin.base.types import Descent
from rlax_plugin.build import Registry
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.ports.training import Trainer
from rlax_plugin.run.start.run_directory import first_weights

OPTION = "--from"
_RECORD = "descent.json"


def recorded(files: RunFiles) -> Descent | None:
    """Returns the recorded origin of a run; None: it started from weights of its own.

    Raises:
      RlaxError: the record cannot be read.
    """
    document = files.get_json(_RECORD)
    if document is None:
        return None
    try:
        return Descent(str(document["run"]), int(document["step"]), str(document["checkpoint"]))
    except (TypeError, LookupError, ValueError) as error:
        raise RlaxError(f"{files.location(_RECORD)} is damaged: {error!r}") from error


def record(files: RunFiles, descent: Descent | None) -> None:
    """Writes the record of an origin that ``decide`` returned."""
    if descent is not None:
        files.put_json(_RECORD, asdict(descent))


def decide(
    files: RunFiles,
    wanted: str | None,
    registry: Registry,
    section: RlaxSection,
    maxtext: Mapping[str, Any],
) -> Descent | None:
    """Returns the origin of a run: the recorded one, or the one that the command names.

    Args:
      files: of the new run.
      wanted: ``RUN`` or ``RUN@STEP``, as given to ``--from``; None: the option is missing.
      registry, section, maxtext: of the new run's config.

    Raises:
      ConfigError: the run has begun from another origin; the config names other weights; or there
        is no such run, no checkpoint of that step, or a trainer that cannot start from it.
    """
    known = recorded(files)
    if wanted is None:
        return known
    for key, path in first_weights(maxtext).items():
        if path:
            reason = f"contradicts {OPTION} {wanted}: leave it out, or empty it with {key}="
            raise ConfigError(key, path, reason)
    run, step = _parsed(wanted)
    if _place(run) == _place(files):
        reason = "is the new run itself: choose another run_name for the new run"
        raise ConfigError(OPTION, wanted, reason)
    if known and _place(run) == _place(RunFiles(known.run)) and step in (None, known.step):
        return known  # also if that run has newer checkpoints by now
    if holds_results(files) or files.exists("versions.json"):
        began = f"started from {known}" if known else "started from its own initial weights"
        reason = f"{files.url} {began}: continue it without --from, or choose another run_name"
        raise ConfigError(OPTION, wanted, reason)
    return _found(wanted, run, step, registry, section)


def start(trainer: Trainer, name: str, descent: Descent) -> str | None:
    """Makes a trainer start from another run's checkpoint.

    Args:
      name: of the trainer, for messages.

    Returns:
      The parts of the checkpoint that are ignored, see ``Trainer.start_from``.

    Raises:
      ConfigError: it cannot start from another run's checkpoint, or not from this one.
    """
    return _starter(trainer, name).start_from(descent)


def _starter(trainer: Trainer, name: str) -> Trainer:
    if not trainer.keeps_checkpoints:
        reason = "does not declare keeps_checkpoints: it cannot start from another run's checkpoint"
        raise ConfigError("rlax.trainer.name", name, reason)
    return trainer


def _parsed(text: str) -> tuple[RunFiles, int | None]:
    run, at, number = text.rpartition("@")
    try:
        files = RunFiles(text)
        if at and number.isascii() and number.isdigit() and not files.exists(CONFIG):
            return RunFiles(run), int(number)
    except ConfigError as error:
        raise ConfigError(OPTION, text, error.reason) from error
    return files, None


def _place(files: RunFiles) -> str:
    return os.path.realpath(files.location()) if files.is_local else files.location()


def _found(
    wanted: str, run: RunFiles, step: int | None, registry: Registry, section: RlaxSection
) -> Descent:
    try:
        config = run.config()
    except ConfigError:
        reason = "must be a run directory (with a config.yml) or RUN@STEP"
        raise ConfigError(OPTION, wanted, reason) from None
    with tempfile.TemporaryDirectory(prefix="rlax-from-") as directory:
        try:
            their_config = of_yaml(config, run.location(CONFIG))
        except ConfigError as error:
            reason = f"has a config that is no longer valid: {error}"
            raise ConfigError(OPTION, wanted, reason) from error
        theirs = their_config.section
        name = section.trainer.plain_name
        if theirs.trainer.plain_name != name:
            reason = f"has trainer {theirs.trainer.name}, whose checkpoints {name} cannot read"
            raise ConfigError(OPTION, wanted, reason)
        context = BuildContext(
            run_dir=Path(directory),
            seed=theirs.seed,
            section=theirs,
            config=their_config,
            run_url=run.url,
        )
        trainer = registry.part("trainer", theirs.trainer, "rlax.trainer", context)
        known = _starter(trainer, name).checkpoints()
    if step is None:
        step = max(known, default=None)
    if step is None or step not in known:
        steps = ", ".join(map(str, sorted(known)))
        there = f"only of these steps: {steps}" if known else "none so far"
        which = "that has a checkpoint" if step is None else f"with a checkpoint of step {step}"
        raise ConfigError(OPTION, wanted, f"must be a run {which}; {run.url} has {there}")
    return Descent(run.location(), step, known[step])
