"""Durations of the phases before training, as earlier commands of this user have measured them.

They are only estimates for the display. So a file that is missing, damaged, too large or in a place
that other users can change counts as empty, and one that cannot be written is not written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlax_plugin.config import RlaxSection
from rlax_plugin.config.user_directories import cache_home
from rlax_plugin.errors import ConfigError
from rlax_plugin.records.private import intrusion, make_private

log = logging.getLogger("rlax.waiting")

_MOST_BYTES = 1 << 16
_MOST_KINDS = 50  # of work; the oldest goes first
_MOST_PHASES = 32
_LONGEST_NAME = 100
_LONGEST_S = 86_400.0
# They decide how long a model takes to build and to compile.
_OF_MODEL = ("base_", "model_name", "hardware", "ici_", "dcn_", "scan_layers", "dtype")


def kind_of_work(command: str, section: RlaxSection, maxtext: Mapping[str, Any]) -> str:
    """Returns a digest of what decides how long the phases of a command take."""
    model = {
        key: value
        for key, value in maxtext.items()
        if key.startswith(_OF_MODEL) and key != "base_output_directory"
    }
    parts = (section.trainer, section.rollouts.engine, section.launcher, section.prompt_source)
    sizes = (section.rollouts.groups_per_step, section.evaluation.problems)
    what = [command, model, [part.model_dump(mode="json") for part in parts], sizes]
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Durations:
    """The durations of the phases of one kind of work.

    Args:
      path: the file; None: durations are neither read nor written.
      kind: see ``kind_of_work``.
    """

    def __init__(self, path: Path | None, kind: str):
        self._path, self._kind = path, kind
        self._known = {} if path is None else _read(path).get(kind, {})
        self._measured: dict[str, float] = {}

    @classmethod
    def of_user(cls, kind: str) -> Durations:
        """Returns those in the user's cache directory."""
        try:
            return cls(cache_home() / "rlax" / "durations" / "phases.json", kind)
        except ConfigError:  # there is no such directory
            return cls(None, kind)

    def last_s(self, phase: str) -> float | None:
        """Returns the seconds that a phase took last time; None: unknown."""
        return self._known.get(phase)

    def measured(self, phase: str, seconds: float) -> None:
        """Notes the duration of a phase that has ended."""
        if 0 < seconds < _LONGEST_S and len(phase) <= _LONGEST_NAME:
            self._measured[phase] = seconds

    def save(self) -> None:
        """Writes the measured durations; the newest kinds of work are kept."""
        if self._path is None or not self._measured:
            return
        kinds = _read(self._path)
        phases = kinds.pop(self._kind, {}) | self._measured
        self._measured = {}
        kinds[self._kind] = dict(list(phases.items())[-_MOST_PHASES:])
        try:
            make_private(self._path.parent)
            if (why := intrusion(self._path.parent)) is not None:
                log.info("durations are not kept: %s", why)
                return
            _replace(self._path, json.dumps(dict(list(kinds.items())[-_MOST_KINDS:])))
        except OSError as error:
            log.info("durations are not kept: %s", error)


def _replace(path: Path, text: str) -> None:
    descriptor, beside = tempfile.mkstemp(dir=path.parent)  # of mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Returns kind of work -> phase -> seconds, without anything that is no such entry."""
    try:
        if intrusion(path.parent) is not None:
            return {}
        # A pipe would block the command, and a link would lead elsewhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
                return {}
            document = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    kinds = list(document.items())[-_MOST_KINDS:]
    return {kind: _phases(found) for kind, found in kinds if isinstance(found, dict)}


def _phases(found: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(seconds)
        for name, seconds in list(found.items())[-_MOST_PHASES:]
        if len(name) <= _LONGEST_NAME
        and isinstance(seconds, int | float)
        and not isinstance(seconds, bool)
        and 0 < seconds < _LONGEST_S  # NaN is not
    }
