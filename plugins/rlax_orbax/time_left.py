"""The remaining time for moving a version, and the kinds of file errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlax_plugin.api import (
    DeadlineError,
    WeightsError,
    WeightsUnreadableError,
    WeightsUnwritableError,
)

# TensorStore and the file system report every kind of failure through these.
IO_ERRORS = (OSError, ValueError, LookupError, NotImplementedError, OverflowError)
# TensorStore raises a ValueError for everything. Its message begins with absl's status code, unless
# that is INVALID_ARGUMENT: then the call itself was wrong. These are all that it says of bytes that
# it has read and that are not what was written; tests flip and cut every byte of a version.
_STATUS = re.compile(r"[A-Z_]+: ")
_WRONG_BYTES = re.compile(
    r"DATA_LOSS: |FAILED_PRECONDITION: .*: (Not enough data|Invalid bool value): ", re.DOTALL
)
_DEADLINE_KEY = "rlax.deadlines.weights_s"


class Clock:
    """Time left for one operation.

    Attributes:
      nbytes: total number of bytes to move; 0: not known yet.
      moved: number of bytes moved so far.
    """

    def __init__(self, what: str, deadline_s: float):
        self._what, self._deadline_s = what, deadline_s
        self._end = time.monotonic() + deadline_s
        self.nbytes = self.moved = 0

    def left_s(self) -> float:
        """Seconds that a wait may still take; with 0 an unfinished wait fails at once."""
        return max(0.0, self._end - time.monotonic())

    def _late(self) -> DeadlineError:
        what = self._what
        if self.nbytes:
            what += f", of which {self.moved / 1e6:.3g} of {self.nbytes / 1e6:.3g} MB were moved,"
        needed_s = self._deadline_s * self.nbytes / self.moved if self.moved else None
        return DeadlineError(what, self._deadline_s, _DEADLINE_KEY, needed_s)

    @contextmanager
    def errors(
        self, what: str, translated: Callable[[str, Exception], WeightsError]
    ) -> Iterator[None]:
        """Turns an overrun into a ``DeadlineError``, and a file error into ``translated``'s one."""
        try:
            yield
        except IO_ERRORS as error:
            # A time-out of the file system or the network has a number; one of ours has none.
            if isinstance(error, TimeoutError) and error.errno is None:
                raise self._late() from error
            raise translated(what, error) from error


def read_error(what: str, error: Exception) -> WeightsError:
    """A ``WeightsError`` for known signs of wrong bytes; any other failure may be temporary."""
    if _WRONG_BYTES.match(str(error)):
        return WeightsError(f"{what} is damaged: {error}")
    return WeightsUnreadableError(f"{what} cannot be read: {error}")


def write_error(what: str, error: Exception) -> WeightsError:
    """A ``WeightsUnwritableError`` for failures that may be temporary, else a ``WeightsError``."""
    passing = isinstance(error, OSError) or _STATUS.match(str(error))
    kind = WeightsUnwritableError if passing else WeightsError
    return kind(f"cannot write {what}: {error}")
