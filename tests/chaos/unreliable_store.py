"""Weight store ``unreliable`` of plug-in ``chaos.unreliable_store``.

It is another store, whose calls are slow, fail or hang while a file says so.
"""

import errno
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlax_plugin.api import (
    Arrays,
    BuildContext,
    Choice,
    Extension,
    Section,
    WeightsError,
    WeightStore,
    hookimpl,
)
from rlax_plugin.base.files.faults import FaultPoint, reached

LATENCY_S, ERRORS = 0.2, 0.05
SLOW, FAULTY, WRITES_HANG, READS_HANG = "slow", "faulty", "writes-hang", "reads-hang"

_KEY = "rlax.weights.store.store"
_LOOK_S, _LONGEST_HANG_S = 0.05, 600.0


class UnreliableConfig(Section):
    """Calls another weight store.

    Attributes:
      store: the other store, with its options.
      switch: absolute path of the file; see ``UnreliableStore``.
    """

    store: Choice = Choice(name="npz")
    switch: str


class UnreliableStore(WeightStore):
    """Passes all calls on to another store.

    The switch is a file with one or more words, which ``switch_on`` writes. While it says ``slow``,
    a call takes 0.2 s longer. While it says ``faulty``, one call in twenty fails: half of these
    before they reach the other store, and half afterwards, as if only the answer were lost. While
    it says ``writes-hang`` or ``reads-hang``, no such call returns; deletions do.

    Args:
      store: the other store.
      switch: path of the switch.
    """

    def __init__(self, store: WeightStore, switch: str):
        self._store, self._switch = store, switch
        self.shared_writing = store.shared_writing

    def save(self, path: str, arrays: Arrays) -> None:
        with self._troubled(WRITES_HANG, path):
            self._store.save(path, arrays)

    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        with self._troubled(READS_HANG, path):
            return self._store.load(path, like)

    def delete(self, path: str) -> None:
        with self._removing(path), self._troubled("", path):
            self._store.delete(path)

    def begin(self, path: str, arrays: Arrays) -> str:
        with self._troubled(WRITES_HANG, path):
            return self._store.begin(path, arrays)

    def write(self, directory: str, arrays: Arrays) -> int:
        with self._troubled(WRITES_HANG, directory):
            return self._store.write(directory, arrays)

    def commit(self, path: str, directory: str, arrays: Arrays, chunks: int) -> None:
        with self._troubled(WRITES_HANG, path):
            self._store.commit(path, directory, arrays, chunks)

    def abandon(self, path: str) -> None:
        with self._removing(path), self._troubled("", path):
            self._store.abandon(path)

    @staticmethod
    @contextmanager
    def _removing(path: str) -> Iterator[None]:
        """Raises the error that is meant for what cannot be removed now."""
        try:
            yield
        except OSError as error:
            raise WeightsError(f"cannot delete {path}: {error.strerror}") from error

    @contextmanager
    def _troubled(self, hang: str, path: str) -> Iterator[None]:
        """Has one call suffer from what the switch says.

        Args:
          hang: the word with which it does not return; "": it always does.

        Raises:
          OSError: the call fails.
        """
        until_s, words = time.monotonic() + _LONGEST_HANG_S, switched(self._switch)
        if hang in words:
            reached(FaultPoint.STORE_HUNG)
            while hang in words and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
                words = switched(self._switch)
        if SLOW in words:
            time.sleep(LATENCY_S)
            reached(FaultPoint.STORE_SLOWED)
        fails = FAULTY in words and random.random() < ERRORS
        answer_is_lost = random.random() < 0.5
        if not fails or answer_is_lost:
            yield
        if fails:
            reached(FaultPoint.STORE_FAILED)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


@hookimpl
def rlax_register_weight_store() -> dict[str, Extension]:
    def build(config: UnreliableConfig, context: BuildContext) -> UnreliableStore:
        return UnreliableStore(context.part("weight_store", config.store, _KEY), config.switch)

    def check_start(config: UnreliableConfig, context: BuildContext) -> None:
        context.check_part("weight_store", config.store, _KEY)

    return {"unreliable": Extension(UnreliableConfig, build, check_start=check_start)}


def switch_on(path: Path, *words: str) -> None:
    """Writes a switch: from now on calls suffer from this; removing the file ends it."""
    beside = path.with_name(f"{path.name}.writing")
    beside.write_text(" ".join(words))
    os.replace(beside, path)


def switched(path: str) -> frozenset[str]:
    """Returns the words of a switch; none if there is no such file."""
    try:
        return frozenset(Path(path).read_text().split())
    except FileNotFoundError:
        return frozenset()
