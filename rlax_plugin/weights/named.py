"""The weights that a user names: a run, one of its versions, or one of its checkpoints."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.config.loading import ResolvedConfig, of_yaml
from rlax_plugin.weights.kept_versions import kept_version, kept_versions

_NUMBER = re.compile("[0-9]{1,10}")
_FIRST_ALONE = "make a run of the weights that training starts from, with steps=0"


@dataclass(frozen=True, slots=True)
class Target:
    """The weights to take from a run.

    Attributes:
      run: the run's directory.
      version: a weight version; None: the newest, unless a checkpoint is given.
      step: the step of a checkpoint; None: no checkpoint, or one given by name.
      checkpoint: its name below ``checkpoints/``; empty: none was given.
      typed: the text as the user typed it, for messages.
    """

    run: RunFiles
    version: int | None = None
    step: int | None = None
    checkpoint: str = ""
    typed: str = ""

    @property
    def is_checkpoint(self) -> bool:
        return self.step is not None or bool(self.checkpoint)


def find_target(text: str, version: int | None, step: int | None, *, also: str = "") -> Target:
    """Reads ``RUN``, ``RUN@VERSION`` or ``RUN/checkpoints/NAME``.

    Args:
      also: other values that the command accepts, for messages.

    Raises:
      ConfigError: the text is none of these, or more than one version or checkpoint is given.
    """
    typed, text = text, text.rstrip("/")
    if RunFiles(text).exists(CONFIG):
        target = Target(RunFiles(text), version, step, typed=typed)
    else:
        parent, name = posixpath.split(text.removesuffix("/items"))
        run, at, number = text.rpartition("@")
        if posixpath.basename(parent) == "checkpoints":
            target = Target(RunFiles(posixpath.dirname(parent) or "."), version, step, name, typed)
        elif at and _NUMBER.fullmatch(number) and version is None:
            target = Target(RunFiles(run), int(number), step, typed=typed)
        else:
            target = Target(RunFiles(text), typed=typed)
        if not target.run.exists(CONFIG):
            raise ConfigError(
                "RUN",
                typed,
                f"must be {also}a run directory (with a config.yml), RUN@VERSION or "
                "RUN/checkpoints/NAME",
            )
    given = {"--version": target.version, "--step": step, "a checkpoint": target.checkpoint or None}
    if len(several := [name for name, value in given.items() if value is not None]) > 1:
        raise ConfigError(
            "RUN", typed, f"{' and '.join(several)} cannot be combined: give one of them"
        )
    return target


def kept_weights(text: str, key: str) -> tuple[ResolvedConfig, WeightVersion]:
    """Returns the config of a run that has ended, and a weight version that it has kept.

    The newest version cannot be asked for: processes that start at different times, or again, would
    get different ones of a run that still trains.

    Args:
      text: ``RUN@VERSION``.
      key: dotted config key that has this text, for errors.

    Raises:
      ConfigError: there is no such run or version, its config is no longer valid, the list of its
        versions is damaged, or the version's bytes are gone.
    """
    try:
        target = find_target(text, None, None)
        if target.is_checkpoint:
            reason = "is a checkpoint, which only a trainer can read: give RUN@VERSION"
            raise ConfigError(key, text, reason)
        if target.version is None:
            kept = ", ".join(map(str, kept_versions(target.run, _FIRST_ALONE)))
            raise ConfigError(key, text, f"must be RUN@VERSION; the run keeps {kept}")
        version = kept_version(target.run, target.version, _FIRST_ALONE)
        content = target.run.get(CONFIG)
    except ConfigError as error:
        raise ConfigError(key, text, error.reason) from None
    except RlaxError as error:
        raise ConfigError(key, text, str(error)) from error
    try:
        return of_yaml(content, target.run.location(CONFIG)), version
    except ConfigError as error:
        raise ConfigError(key, text, f"has a config that is no longer valid: {error}") from error
