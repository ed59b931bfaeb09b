"""Weight store ``unreliable``: another store, whose calls fail or take long while a file says so.

``rlax chaos --fault store`` writes that file.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from rlax_plugin.config import Choice, Section
from rlax_plugin.errors import ConfigError, WeightsError
from rlax_plugin.ports.protocols import Arrays, BuildContext, WeightStore
from rlax_plugin.ports.store_abilities import SharedWriter
from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.rpc.private_files import PrivacyError, read_private, write_whole

LATENCY_S, ERRORS = 0.2, 0.05
SLOW, FAULTY, WRITES_HANG, READS_HANG = "slow", "faulty", "writes-hang", "reads-hang"
WORDS = frozenset((SLOW, FAULTY, WRITES_HANG, READS_HANG))

_KEY = "rlax.weights.store"
_LOOK_S, _LONGEST_HANG_S = 0.05, 600.0


class UnreliableConfig(Section):
    """Calls another weight store, and has calls be slow, fail or hang while a file says so."""

    store: Choice = Field(
        default=Choice(name="npz"), description="weight store that is called, with its options"
    )
    switch: str = Field(
        default="",
        description="absolute path of a file that rlax chaos writes, of mode 0600 and of the same "
        "user: one or more of the words slow, faulty, writes-hang and reads-hang. All calls are as "
        "fast and reliable as those of the other store while there is no such file, or if this is "
        "empty",
    )

    @field_validator("switch")
    @classmethod
    def _absolute(cls, switch: str) -> str:
        if switch and (not os.path.isabs(switch) or "\0" in switch):
            raise ValueError("must be an absolute path, because workers have other directories")
        return switch


class UnreliableStore(WeightStore):
    """Passes all calls on to another store.

    While the switch says ``slow``, a call takes 0.2 s longer. While it says ``faulty``, one call in
    twenty fails: half of these before they reach the other store, and half afterwards, as if only
    the answer were lost. While it says ``writes-hang`` or ``reads-hang``, no such call returns;
    deletions do.

    Args:
      store: the other store.
      switch: see ``UnreliableConfig``.
    """

    def __init__(self, store: WeightStore, switch: str):
        self._store, self._switch = store, switch

    def save(self, path: str, arrays: Arrays) -> None:
        with self._troubled(WRITES_HANG, path):
            self._store.save(path, arrays)

    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        with self._troubled(READS_HANG, path):
            return self._store.load(path, like)

    def delete(self, path: str) -> None:
        with self._removing(path), self._troubled("", path):
            self._store.delete(path)

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
          ConfigError: the switch is not a file of the right kind.
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


class SharedUnreliableStore(UnreliableStore, SharedWriter):
    """The same for a store into which several hosts write together."""

    def __init__(self, store: WeightStore, switch: str):
        super().__init__(store, switch)
        assert isinstance(store, SharedWriter)
        self._shared: SharedWriter = store

    def begin(self, path: str, arrays: Arrays) -> str:
        with self._troubled(WRITES_HANG, path):
            return self._shared.begin(path, arrays)

    def write(self, directory: str, arrays: Arrays) -> int:
        with self._troubled(WRITES_HANG, directory):
            return self._shared.write(directory, arrays)

    def commit(self, path: str, directory: str, arrays: Arrays, chunks: int) -> None:
        with self._troubled(WRITES_HANG, path):
            self._shared.commit(path, directory, arrays, chunks)

    def abandon(self, path: str) -> None:
        with self._removing(path), self._troubled("", path):
            self._shared.abandon(path)


def build(config: UnreliableConfig, context: BuildContext) -> UnreliableStore:
    """Builds the other store, and returns it with its abilities behind the switch."""
    store: WeightStore = context.part("weight_store", config.store, f"{_KEY}.store")
    shared = isinstance(store, SharedWriter)
    return (SharedUnreliableStore if shared else UnreliableStore)(store, config.switch)


def check_start(config: UnreliableConfig, context: BuildContext) -> None:
    """Checks the other store."""
    context.check_part("weight_store", config.store, f"{_KEY}.store")


def switch_on(path: Path, *words: str) -> None:
    """Writes a switch: from now on calls suffer from this; removing the file ends it."""
    write_whole(path, " ".join(words).encode())


def switched(path: str) -> frozenset[str]:
    """Returns the words of a switch; none if there is no such file.

    Raises:
      ConfigError: it is no file of the right kind, or has other words.
    """
    if not path:
        return frozenset()
    try:
        found = frozenset(read_private(Path(path)).decode("ascii", "replace").split())
    except FileNotFoundError:
        return frozenset()
    except PrivacyError as error:
        raise ConfigError(f"{_KEY}.switch", path, str(error)) from error
    except OSError as error:
        raise ConfigError(f"{_KEY}.switch", path, f"cannot be read: {error.strerror}") from error
    if not found or not found <= WORDS:
        reason = f"must have one or more of the words {', '.join(sorted(WORDS))}, and nothing else"
        raise ConfigError(f"{_KEY}.switch", path, reason)
    return found
