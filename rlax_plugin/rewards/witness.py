"""Shared memory in which a reward process names its current job, readable even if it hangs.

Any code in the process may write there, so the trainer uses it only as a hint at which job is to
blame.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
from typing import IO

_SIZE = 16
_JOB = struct.Struct("<Q")


class Witness:
    """The shared memory.

    Attributes:
      reward: number of the reward that the main thread calls, or called last.
      job: number of the job whose step runs on the event loop; 0 if there is none.
    """

    def __init__(self, descriptor: int):
        self._memory = mmap.mmap(descriptor, _SIZE)

    @property
    def reward(self) -> int:
        return self._memory[0]

    @reward.setter
    def reward(self, number: int) -> None:
        self._memory[0] = min(number, 255)

    @property
    def job(self) -> int:
        return _JOB.unpack_from(self._memory, 8)[0]

    @job.setter
    def job(self, number: int) -> None:
        _JOB.pack_into(self._memory, 8, number)


def shared() -> IO[bytes]:
    """Returns a file without a name, for the ``Witness`` of both sides."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    file.write(bytes(_SIZE))
    file.flush()
    return file
