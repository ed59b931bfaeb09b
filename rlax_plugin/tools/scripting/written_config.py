"""The folder of a config that ``train`` writes: the config, and the files that it names.

The folder is what ``rlax train`` needs to start the same run: ``NAME.yml`` with the arguments of
the call, the config that it is based on, data, and source of rewards.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.private import make_private
from rlax_plugin.base.files.run_files import RunFiles, holds_results
from rlax_plugin.config.loading import merged

FOLDERS = "configs"
"""Directory of the folders, below the working directory."""

_WRITTEN = "written.json"  # name -> SHA-256 of each file, as it was written


class WrittenConfig:
    """A folder with a config and the files that it names.

    A file that is there already is replaced only if it was written here and not edited since, and
    as long as the run has no results that the new content would contradict. So the same call
    continues a run, and a call that is put right starts it.

    Args:
      name: name of the run, and of the config.
      folder: the folder, which need not exist.
      run: directory of the run.

    Raises:
      ConfigError: the folder cannot be read.
    """

    def __init__(self, name: str, folder: Path, run: str):
        self._name, self.folder, self._run = name, folder, run
        self._new = not folder.exists()
        self._before = self._known()
        self._digests: dict[str, str] = {}

    @property
    def path(self) -> Path:
        """The config."""
        return self.folder / f"{self._name}.yml"

    def put(self, name: str, content: bytes) -> Path:
        """Writes a file; returns its path.

        Raises:
          ConfigError: there is a file that must not be replaced, or the disk failed.
        """
        path, digest = self.folder / name, hashlib.sha256(content).hexdigest()
        try:
            there = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
            if there not in (None, digest, self._before.get(name)):
                reason = f"{path} was not written by train, or was edited: choose another name"
                raise ConfigError("name", self._name, reason)
            if there != digest:
                if not _is_same_config(path, content):
                    self._check_no_results(name)
                make_private(self.folder)
                path.write_bytes(content)
        except OSError as error:
            raise self._unwritable(error) from None
        self._digests[name] = digest
        return path

    def finish(self) -> None:
        """Removes files of an earlier call that this one has not written, and lists the others.

        Raises:
          ConfigError: see ``put``.
        """
        try:
            for name in self._before.keys() - self._digests.keys():
                self._check_no_results(name)
                (self.folder / name).unlink(missing_ok=True)
            text = json.dumps(self._digests, indent=2) + "\n"
            (self.folder / _WRITTEN).write_text(text)
        except OSError as error:
            raise self._unwritable(error) from None

    def discard(self) -> None:
        """Removes the folder if it did not exist before; otherwise lists what was written."""
        if self._new:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif self._digests:
            text = json.dumps({**self._before, **self._digests}, indent=2) + "\n"
            with suppress(OSError):  # on a full disk; the error that led here says so
                (self.folder / _WRITTEN).write_text(text)

    def _check_no_results(self, name: str) -> None:
        if self._before and holds_results(RunFiles(self._run)):
            reason = f"{self._run} has results of other arguments ({name} differs)"
            raise ConfigError("name", self._name, f"{reason}: choose another name")

    def _known(self) -> dict[str, str]:
        path = self.folder / _WRITTEN
        try:
            found = json.loads(path.read_bytes())
            if not isinstance(found, dict):
                raise ValueError("is no list of files")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            reason = f"{path} cannot be read: {error}; remove the folder or choose another name"
            raise ConfigError("name", self._name, reason) from None
        return {str(name): str(digest) for name, digest in found.items()}

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError("folder", str(self.folder), f"cannot be written: {error.strerror}")


def _is_same_config(path: Path, content: bytes) -> bool:
    """True if a config has the same keys as a new text of it, with data at the same place."""
    if path.suffix != ".yml" or not path.exists():
        return False
    new = path.with_name(f"new-{path.name}")
    try:
        new.write_bytes(content)
        return merged(path) == merged(new)
    except ConfigError:
        return False
    finally:
        new.unlink(missing_ok=True)


def free_name(folders: Path, output_directory: str) -> str:
    """Returns a name that neither a folder of a config nor a run has: run-1, run-2, and so on."""
    number, runs = 1, RunFiles(output_directory)
    taken = set(runs.names(""))
    if folders.is_dir():
        taken |= {one.name for one in folders.iterdir()}
    while f"run-{number}" in taken:
        number += 1
    return f"run-{number}"
