"""Finds the directories of a run on this machine, also if its config cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.liveness.plain_files import whole
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.config.yaml_values import parse
from rlax_plugin.run.start.lease import EVERY_S, trainer_here, trainer_without
from rlax_plugin.run.start.run_directory import WITHOUT_STATE, state_directory

_MOST_BYTES = 16 << 20
_OF_A_RUN = ("status.json", ".lock", "processes", "logs")  # at least one is in a state directory


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The directories of a run.

    Attributes:
      files: its run directory.
      state_dir: its state directory on this machine.
      section: of its config; None: it cannot be read, for the reason ``problem``.
    """

    files: RunFiles
    state_dir: Path
    section: RlaxSection | None
    problem: str = ""


def place_of(run: str) -> RunPlace:
    """Finds a run on this machine.

    If its config cannot be read, as one of another version, the state directory is the one that the
    config names as far as it is YAML, or the run directory itself.

    Raises:
      ConfigError: there is no such run, or it runs elsewhere.
      RlaxError: its config cannot be read, and nothing else says where its state is.
    """
    files = RunFiles(run)
    section, content, problem = None, None, None
    try:
        data = read_plain(files, CONFIG)
        location = files.location(CONFIG)
        content = parse(data, location)
        section = of_yaml(data, location).section
    except FileNotFoundError:
        if (pid := trainer_without(files)) is None:
            raise files.no_run() from None
        reason = (
            f"was removed while process {pid} trains the run, which ends by itself within "
            f"{EVERY_S:g} s: its records and checkpoints are lost, unless you have a copy"
        )
        raise ConfigError("RUN", run, reason) from None
    except RlaxError as error:
        problem = error
    if section is not None:
        found = state_directory(section, files)
    else:
        assert problem is not None
        known = _state_dir_of(content) or (Path(files.location()) if files.is_local else None)
        if known is None or not any((known / name).exists() for name in _OF_A_RUN):
            raise problem
        found = known
    if not found.is_dir():
        reason = (
            f"has no state directory on this machine ({found}): ask its controller instead, with "
            "--controller HOST:PORT and --token-file FILE"
        )
        if (pid := trainer_here(files)) is not None:
            reason = (
                f"has lost its state directory ({found}), which was removed while process {pid} "
                f"trains the run: {WITHOUT_STATE}"
            )
        raise ConfigError("RUN", run, reason)
    return RunPlace(files, found, section, "" if problem is None else str(problem))


def read_plain(files: RunFiles, name: str) -> bytes:
    """Reads a file of a run; a local one only if it is an ordinary file of reasonable size.

    Raises:
      FileNotFoundError: the file does not exist.
      RlaxError: it cannot be read.
    """
    if not files.is_local:
        return files.get(name)
    path = files.location(name)
    try:
        return whole(Path(path), _MOST_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RlaxError(f"{path} cannot be read: {error.strerror}") from None


def _state_dir_of(content: Any) -> Path | None:
    section = content.get("rlax") if isinstance(content, dict) else None
    named = section.get("state_dir") if isinstance(section, dict) else None
    return Path(named) if isinstance(named, str) and named else None
