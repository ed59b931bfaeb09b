"""A fingerprint of every tensor of a checkpoint, so that a bit which flips on disk is noticed.

Orbax reads most flipped bits of a tensor's data back without an error. Fingerprints are computed on
the devices when a checkpoint is saved, of all that it holds: weights, optimizer state, counters and
keys of random numbers. They lie in ``fingerprints/LABEL.json`` of the run, and are compared with
those of the restored state. Of the other flipped bits, those of compressed data mostly, TensorStore
says that it cannot decode what it has read.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from flax import nnx

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.weights.device_fingerprint import fingerprint

log = logging.getLogger("rlax.maxtext")

_DIRECTORY, _SET_ASIDE = "fingerprints", "damaged"
# TensorStore raises a ValueError for everything. This is what it says of bytes that it has read;
# other codes, and other preconditions, may be an outage or another model.
_WRONG_BYTES = re.compile(
    r"DATA_LOSS: |FAILED_PRECONDITION: .*(ZSTD_\w+\(\) failed|Not enough data|checksum)",
    re.DOTALL,
)


class DamagedCheckpointError(TrainingError):
    """A restored checkpoint has other values than were saved."""

    def __init__(self, files: RunFiles, label: int, reason: str):
        self._files, self._name = files, f"checkpoints/{label}"
        super().__init__(f"the checkpoint {files.location(self._name)} is damaged: {reason}")

    def set_aside(self) -> None:
        """Moves the checkpoint away, so that the one before is the newest.

        Raises:
          DamagedCheckpointError: it is not on a local disk, or cannot be moved.
        """
        if not self._files.is_local:
            raise self
        place = self._files.location(f"{_SET_ASIDE}/{os.path.basename(self._name)}")
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.rename(self._files.location(self._name), place)
        except OSError as error:
            raise self from error


def save(checkpoint_dir: str, label: int, state: Any) -> None:
    """Writes the fingerprints of a state that is about to be saved; those of no checkpoint go."""
    found = _fingerprints(state)
    if jax.process_index():
        return
    files = _files(checkpoint_dir)
    files.put_json(_name(label), found)
    kept = {f"{name}.json" for name in files.names("checkpoints")} | {f"{label}.json"}
    for name in files.names(_DIRECTORY):
        if name not in kept:
            files.delete(f"{_DIRECTORY}/{name}")


@contextmanager
def restoring(checkpoint_dir: str) -> Iterator[None]:
    """Tells the newest checkpoint that cannot be decoded from all other failures to restore it.

    Raises:
      DamagedCheckpointError: TensorStore has read bytes that are not what was written.
    """
    try:
        yield
    except (ValueError, KeyError) as error:  # Orbax raises a KeyError from TensorStore's error
        cause: BaseException | None = error
        while cause is not None and not _WRONG_BYTES.match(str(cause)):
            cause = cause.__cause__
        files = _files(checkpoint_dir)
        labels = [int(name) for name in files.names("checkpoints") if name.isdecimal()]
        if cause is None or not labels:
            raise
        raise DamagedCheckpointError(files, max(labels), one_line(str(cause))) from error


def check(checkpoint_dir: str, label: int, state: Any) -> None:
    """Compares a restored state with the fingerprints of its checkpoint, if they were written.

    Raises:
      DamagedCheckpointError: they differ, or are damaged themselves.
      RlaxError: the file cannot be read.
    """
    files = _files(checkpoint_dir)
    try:
        saved = json.loads(files.get(_name(label)))
    except FileNotFoundError:
        log.info("checkpoint %d of %s was saved without fingerprints", label, files.url)
        return
    except ValueError as error:
        reason = f"{files.location(_name(label))} is not JSON: {error}"
        raise DamagedCheckpointError(files, label, reason) from error
    found = _fingerprints(state)
    if found == saved:
        return
    names = sorted(n for n in found.keys() | saved.keys() if found.get(n) != saved.get(n))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    reason = f"{names[0]}{more} of {len(found)} tensors differ from what was saved"
    raise DamagedCheckpointError(files, label, reason)


def _files(checkpoint_dir: str) -> RunFiles:
    return RunFiles(os.path.dirname(checkpoint_dir.rstrip("/")))


def _name(label: int) -> str:
    return f"{_DIRECTORY}/{label}.json"


def _fingerprints(state: Any) -> dict[str, int]:
    if isinstance(state, nnx.Module):
        state = nnx.state(state)
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        arrays[jax.tree_util.keystr(path, simple=True, separator=".")] = leaf
    return {name: int(value) for name, value in jax.device_get(fingerprint(arrays)).items()}
