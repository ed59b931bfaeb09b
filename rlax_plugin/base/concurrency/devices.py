"""The devices of a process that trains and generates in turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress

from rlax_plugin.base.errors import DeadlineError, WorkerError

CALL = "the end of a call of the rollout engine, which has the devices,"
"""What a deadline of such a call says that it was waiting for."""

_LOOK_S = 60.0  # longest sleep of a thread that waits for its turn; it is woken when it comes


class Devices:
    """Who computes on the devices: the trainer alone, or the threads of the engine together.

    The trainer has them at first, because it builds its model before there are weights to generate
    with. Where both wait it goes first: its batch is complete. Programs of several devices that two
    threads start in different orders could wait for each other for ever, and the memory for one
    phase's intermediate arrays is free in the other.

    Attributes:
      training: True while the trainer has them; any thread may read it.
      rested: done once the trainer has let go for the first time, with its model built.
      compiles: returns True while a call of the engine may last as long as its compilation.
    """

    def __init__(self) -> None:
        self.compiles: Callable[[], bool] = lambda: True
        self._changed = threading.Condition()
        # All guarded by _changed:
        self.training, self._trainer_waits = True, False
        self._calls: list[float] = []  # beginnings of the engine's present ones, time.monotonic
        self._since_s, self._trained_s, self._ended = time.monotonic(), 0.0, False
        self.rested: Future[None] = Future()

    @property
    def trained_s(self) -> float:
        """Seconds for which the trainer has had the devices so far; any thread.

        A deadline of the engine's work does not count them.
        """
        with self._changed:
            now_s = time.monotonic() - self._since_s if self.training else 0.0
            return self._trained_s + now_s

    @property
    def call_s(self) -> float:
        """Seconds since the oldest present call of the engine began; 0: there is none."""
        with self._changed:
            return time.monotonic() - min(self._calls) if self._calls else 0.0

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Waits until the trainer does not have the devices; it then waits for the block's end.

        For one call of the engine, which is short, as training waits for it. Not to be nested.

        Raises:
          WorkerError: the engine is being closed, and begins nothing more.
        """
        with self._changed:
            while not self._ended and (self.training or self._trainer_waits):
                self._changed.wait(_LOOK_S)
            if self._ended:
                raise WorkerError("the engine is being closed")
            self._calls.append(began_s := time.monotonic())
        try:
            yield
        finally:
            with self._changed:
                self._calls.remove(began_s)
                self._changed.notify_all()

    def train(self, deadline_s: float, key: str) -> None:
        """Gives the devices to the trainer, once the engine's present calls have ended.

        Raises:
          DeadlineError: they did not end in time.
        """
        with self._changed:
            self._trainer_waits = True
            try:
                if not self._changed.wait_for(lambda: not self._calls, deadline_s):
                    raise DeadlineError(CALL, deadline_s, key)
                self.training, self._since_s = True, time.monotonic()
            finally:
                self._trainer_waits = False
                self._changed.notify_all()

    def rest(self) -> None:
        """Takes the devices from the trainer, which starts no computation until ``train``."""
        with self._changed:
            if self.training:
                now_s = time.monotonic()
                self._trained_s += now_s - self._since_s
                self.training, self._since_s = False, now_s
            self._changed.notify_all()
        with suppress(InvalidStateError):  # it has rested before, or its waiter was cancelled
            self.rested.set_result(None)

    def end(self) -> None:
        """Ends the engine's turns: a thread that waits for one, or asks for one, gets none."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
