"""A run's directory: its place, the run it belongs to, and the check for a finished run."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.private import check_private, exposed, make_private
from rlax_plugin.base.files.run_files import CONFIG, RunFiles, holds_results, ordinary
from rlax_plugin.base.text.command_lines import train_command
from rlax_plugin.base.text.secrets import shown_value
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.identity import config_hash, differences
from rlax_plugin.config.user_directories import state_home
from rlax_plugin.config.validation import yaml_text
from rlax_plugin.run.evaluation.result import recorded
from rlax_plugin.run.start.holder import (
    LOCK,
    described,
    record_holder,
    recorded_holder,
    this_process,
)

_SHOWN_DIFFERENCES = 4
BASE_KEY, _STATE_KEY = "load_parameters_path", "load_full_state_path"  # MaxText's
_ADAPTERS = "lora_restore_path"


def has_adapters(maxtext: Mapping[str, Any]) -> bool:
    """True if a run trains adapters: ``load_parameters_path`` names their base, and no more."""
    lora = maxtext.get("lora")
    return isinstance(lora, Mapping) and bool(lora.get("enable_lora"))


def first_weights(maxtext: Mapping[str, Any]) -> dict[str, str]:
    """Returns MaxText's keys that name the weights that training starts from -> path or ''."""
    found = {_STATE_KEY: str(maxtext.get(_STATE_KEY) or "")}
    if has_adapters(maxtext):
        return found | {f"lora.{_ADAPTERS}": str(maxtext["lora"].get(_ADAPTERS) or "")}
    return {BASE_KEY: str(maxtext.get(BASE_KEY) or "")} | found


def run_directory(maxtext: Mapping[str, Any]) -> str:
    """Returns the directory of the run, MaxText's and this project's: a path or URL.

    Raises:
      ConfigError: a key is missing.
    """
    for key in ("run_name", "base_output_directory", "steps"):
        if maxtext.get(key) in (None, ""):
            raise ConfigError(key, maxtext.get(key), "must be set in the config or as key=value")
    return f"{str(maxtext['base_output_directory']).rstrip('/')}/{maxtext['run_name']}"


def weights_directory(section: RlaxSection, files: RunFiles) -> str:
    """Returns the directory of the run's weight versions."""
    path = section.weights.path
    return RunFiles(path).location() if path else files.location("weights")


def state_directory(section: RlaxSection, files: RunFiles) -> Path:
    """Returns a local directory for ledger, lock and logs: the run's own, if that is local.

    Raises:
      ConfigError: it is not set, and this user has no directory for it.
    """
    return Path(section.state_dir) if section.state_dir else usual_state_directory(files)


WITHOUT_STATE = (
    "it goes on without status and logs; end it with Ctrl-C, and the same command continues it "
    "with a new one"
)
"""The rest of a sentence about a run whose state directory was removed."""


def usual_state_directory(files: RunFiles) -> Path:
    """Returns the state directory of a run whose config names none.

    Raises:
      ConfigError: this user has no directory for it.
    """
    if files.is_local:
        return Path(files.location())
    digest = hashlib.sha256(files.location().encode()).hexdigest()[:12]
    return state_home("rlax.state_dir") / "rlax" / f"{Path(files.url).name}-{digest}"


def make_directories(
    files: RunFiles,
    state_dir: Path,
    section: RlaxSection,
    maxtext: Mapping[str, Any],
    log: str = "trainer.log",
) -> None:
    """Makes the local directories of a run, accessible only to its user, and tries to write there.

    MaxText, trackers and the weight store make theirs below these, with the usual modes.

    Args:
      log: name of this process's log.

    Raises:
      ConfigError: a file cannot be written, or other users could write there as well.
    """
    base = str(maxtext["base_output_directory"])
    if files.is_local and not section.state_dir:  # the state lies in the run's own directory
        key, value = "base_output_directory", base
    else:
        key, value = "rlax.state_dir", section.state_dir or str(state_dir)
    _make(key, value, state_dir)
    try:
        (state_dir / "logs").mkdir(exist_ok=True)
        for path in (state_dir / LOCK, state_dir / "logs" / log):
            open(path, "ab", opener=ordinary).close()
    except OSError as error:
        raise _unwritable(key, value, state_dir, error) from None
    if files.is_local:
        _make("base_output_directory", base, Path(files.location()))
    if section.weights.path and (weights := RunFiles(section.weights.path)).is_local:
        _make("rlax.weights.path", section.weights.path, Path(weights.location()))


def exposures(files: RunFiles, state_dir: Path, section: RlaxSection) -> list[str]:
    """Returns warnings about the directories above those of a run, see ``private.exposed``."""
    urls = (files.url, str(state_dir), section.weights.path)
    runs = [RunFiles(url) for url in urls if url]
    found = [exposed(Path(run.location())) for run in runs if run.is_local]
    return list(dict.fromkeys(line for line in found if line))


def _make(key: str, value: str, directory: Path) -> None:
    try:
        make_private(directory)
    except OSError as error:
        raise _unwritable(key, value, directory, error) from None
    check_private(key, value, directory)  # it may just have been made by another user


def _unwritable(key: str, value: str, directory: Path, error: OSError) -> ConfigError:
    reason = f"cannot be written: {error.filename or directory}: {error.strerror}"
    return ConfigError(key, value, reason)


@contextmanager
def locked(state_dir: Path) -> Iterator[str]:
    """Locks a state directory for one process; the lock ends with the process, however it ends.

    Yields:
      The lock's identity on this machine since its boot; empty: it is unknown.

    Raises:
      ConfigError: another process has locked it.
    """
    # Not "w", which would remove the record of the process that has the lock.
    lock: IO[str] = (state_dir / LOCK).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = described(recorded_holder(state_dir))
        reason = f"is already used by {who}: end that first, or choose another run_name"
        raise ConfigError("run_name", state_dir.name, reason) from None
    try:
        record_holder(lock)
        found = os.fstat(lock.fileno())
        # Without the namespace of process ids: a container that is started again has another.
        boot = this_process().get("boot", "").partition(" ")[0]
        yield f"{boot} {found.st_dev} {found.st_ino}" if boot else ""
    finally:
        lock.close()


def check_same_run(
    files: RunFiles, digest: str, config: Mapping[str, Any], argv: Sequence[str]
) -> None:
    """Raises an error for another run, and says how to start from its weights.

    Args:
      config: the merged one, whose hash ``digest`` is.
      argv: arguments of the command.

    Raises:
      ConfigError: the directory holds results of another config.
      RlaxError: neither ``config.json`` nor ``config.yml`` can be read.
    """
    if not holds_results(files):
        return  # a run that failed at once may be started again with its config put right
    if _recorded_hash(files) not in (None, digest):
        raise ConfigError(
            "run_name",
            Path(files.url).name,
            f"{files.url} holds a run of another config{_difference(files, config)}; choose "
            f"another run_name or remove that directory{_from_its_weights(files, config, argv)}",
        )


def _recorded_hash(files: RunFiles) -> str | None:
    """Returns the hash of a run's config; None if it has none.

    It is in ``config.json``. If that is damaged, ``config.yml`` has the config itself; a run that
    continues writes both again.
    """
    try:
        record = files.get_json("config.json")
        return None if record is None else str(record["config_hash"])
    except (RlaxError, LookupError, TypeError) as error:
        try:
            return config_hash(yaml.safe_load(files.get(CONFIG)))
        except (FileNotFoundError, yaml.YAMLError, ValueError, AttributeError):
            raise RlaxError(
                f"{files.location('config.json')} and {CONFIG} are damaged ({error}), so that "
                "nothing tells whether this config is the run's: bring one of them back from a "
                "copy of the run directory"
            ) from error


def _from_its_weights(files: RunFiles, config: Mapping[str, Any], argv: Sequence[str]) -> str:
    """Returns advice on starting a new run from the weights of this one, if it has some."""
    if not files.names("checkpoints"):
        return ""
    parent, _, name = files.url.rstrip("/").rpartition("/")
    taken = RunFiles(parent or ".").names("")
    new = next(new for n in itertools.count(2) if (new := f"{name}-{n}") not in taken)
    words = [word for word in argv if not word.startswith("run_name=")] + [f"run_name={new}"]
    # Weights come from one place only.
    words += [f"{key}=" for key, path in first_weights(config).items() if path]
    command = train_command([*words, "--from", files.url])
    return f". To train on from its weights under another name:\n  {command}"


def _difference(files: RunFiles, config: Mapping[str, Any]) -> str:
    """Returns the first keys in which a run's own config and this one differ, for messages."""
    try:
        known = yaml.safe_load(files.get(CONFIG))
    except (FileNotFoundError, yaml.YAMLError):
        return ""
    found = differences(known, config) if isinstance(known, Mapping) else []
    shown = [
        f"{key} is {_value(key, old)} there and {_value(key, new)} here" for key, old, new in found
    ]
    if len(found) > _SHOWN_DIFFERENCES:
        more = len(found) - _SHOWN_DIFFERENCES
        shown[_SHOWN_DIFFERENCES:] = [f"{more} more key{'s differ' if more > 1 else ' differs'}"]
    return f" ({', '.join(shown)})" if shown else ""


def _value(key: str, value: object) -> str:
    return "not set" if value is None else yaml_text(shown_value(key, value))


def finished(files: RunFiles, last_step: int, evaluates: bool) -> dict[str, Any] | None:
    """Returns the summary of a run that has no work left; None if it has some.

    Args:
      evaluates: True if an evaluation after training belongs to it.
    """
    document = files.get_json("summary.json") or {}
    if not document.get("complete") or document["steps"] < last_step:
        return None
    if evaluates and recorded(files, "after", version=document["steps"]) is None:
        return None
    return document
