"""Captures the output of reward processes: a pipe, and a log without control codes and secrets."""

from __future__ import annotations

import codecs
import os
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.base.text.secrets import hidden

_READ = 1 << 15  # bytes at once; a line that is longer is written in parts
_SECRET = 1 << 10  # characters of a secret at most, where such a line is parted
_CLOSE_S = 2.0  # for what is still in the pipe; what is held open by a stray process is left


class RewardOutput:
    """Appends output written to ``descriptor`` to a file, on a separate thread.

    A file that has reached its largest size becomes ``<name>.1``, in place of an earlier one.

    Args:
      path: the file.
      most_bytes: largest size of each of the two; a tool may print a megabyte in each episode.

    Raises:
      RlaxError: the file cannot be opened.

    Attributes:
      descriptor: the pipe's end for reward processes.
      path: the file.
    """

    def __init__(self, path: Path, most_bytes: int = 128 << 20):
        self.path, self._most_bytes = path, most_bytes
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = FileIO(path, "a")
        except OSError as error:
            raise RlaxError(f"{path} cannot be opened for writing: {error.strerror}") from error
        source, self.descriptor = os.pipe()
        self._thread = threading.Thread(
            target=self._copy, args=(source, file), name="reward output", daemon=True
        )
        self._thread.start()

    def _copy(self, source: int, file: FileIO) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with open(source, "rb", buffering=0) as pipe:
            waiting = ""  # the beginning of a line, as a secret is recognised only if it is whole
            while (data := pipe.read(_READ)) or waiting:
                waiting += decode(data)
                whole = waiting.rfind("\n") + 1 if data else len(waiting)
                if len(waiting) - whole > _READ:
                    whole = _cut(waiting)
                text, waiting = hidden(harmless(waiting[:whole])).encode(), waiting[whole:]
                # A full disk ends the run elsewhere; here it must not stop the rewards.
                with suppress(OSError):
                    file = self._with_room(file, len(text))
                    file.write(text)
        file.close()

    def _with_room(self, file: FileIO, size: int) -> FileIO:
        """Returns the file, or a new one if it has no room for ``size`` more bytes."""
        written = os.fstat(file.fileno()).st_size
        if not written or written + size <= self._most_bytes:
            return file
        with suppress(FileNotFoundError):  # after a try that made no new one
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        new = FileIO(self.path, "a")
        file.close()
        return new

    def close(self) -> None:
        """Waits until all output is in the file, for at most 2 s."""
        os.close(self.descriptor)
        self._thread.join(_CLOSE_S)


def _cut(text: str) -> int:
    """Returns a place near the end of a text that is within no secret, or beginning of one."""
    shown, last = hidden(text), len(text) - _SECRET
    places = range(last - 3 * _SECRET, last, _SECRET)
    return next((i for i in places if hidden(text[:i]) + hidden(text[i:]) == shown), last)
