"""Consoles that print harmless text without secrets, and the redirection of library output."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Buffer, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.base.text.logs import log_to
from rlax_plugin.base.text.secrets import hidden


class HarmlessConsole(Console):
    """Makes text harmless when it is shown, also text recorded by earlier versions.

    Control codes that rich itself sends, such as colours, are not part of the text. Square brackets
    in it are plain square brackets.

    It looks for secrets itself although ``secrets.hide_in`` does so on standard output: that cannot
    see a secret between colours, and a segment here may be only a part of one.
    """

    def __init__(self, **options: Any):
        super().__init__(markup=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(hidden(harmless(text)), **options)  # before widths are measured

    def render(self, renderable: RenderableType, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for segment in super().render(renderable, *args, **kwargs):
            if segment.control:
                yield segment
            else:
                yield Segment(hidden(harmless(segment.text)), segment.style)


class _LineConsole(HarmlessConsole):
    """Leaves it to the terminal to wrap lines of text: a command of several lines is none."""

    def print(self, *objects: Any, **options: Any) -> None:
        if all(isinstance(one, str) for one in objects):
            options.setdefault("soft_wrap", True)
        super().print(*objects, **options)


def console(out: IO[str]) -> Console:
    """Returns a console that prints paths, commands and messages unchanged, each in one line."""
    return _LineConsole(file=out, highlight=False, soft_wrap=not out.isatty())


_MOST_WAITING = 1 << 20  # bytes that nobody has read
_PATIENCE_S = 0.5


def threaded_text(descriptor: int, name: str, *, flushes: bool = True) -> TextIO:
    """Returns text output whose writers never wait for its reader.

    A terminal that is stopped with Ctrl-S, a full pipe without a reader and a disk that hangs block
    a write for good. What does not fit meanwhile is dropped, and a line with the number of dropped
    lines takes its place. After an error, as of a closed terminal, everything is dropped.

    Args:
      descriptor: it is closed with the output.
      name: name of the thread that writes.
      flushes: False: ``flush`` returns at once, and only ``close`` waits for what is written.
    """
    threaded = _Threaded(descriptor, name, flushes)
    return io.TextIOWrapper(threaded, "utf-8", errors="replace", write_through=True)


class _Threaded(io.RawIOBase):
    def __init__(self, descriptor: int, name: str, flushes: bool):
        self.name, self._flushes = name, flushes
        self._descriptor, self._changed = descriptor, threading.Condition()
        self._waiting: list[bytes] = []
        self._size = self._dropped = 0
        self._stalled = self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        piece = bytes(data)
        with self._changed:
            if self._size + len(piece) > _MOST_WAITING:
                self._dropped += piece.count(b"\n")
            else:
                self._waiting.append(piece)
                self._size += len(piece)
                self._changed.notify_all()
        return len(piece)

    def flush(self) -> None:
        """Waits until all is written, for at most half a second, and only once for each stall."""
        with self._changed:
            if self._flushes and not self._stalled:
                self._stalled = not self._changed.wait_for(lambda: not self._size, _PATIENCE_S)

    def close(self) -> None:
        super().close()  # it flushes
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        gone = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._dropped or self._ended)
                if not self._waiting and not self._dropped:
                    break
                if self._dropped:
                    line = f"({self._dropped:,} lines were dropped: nothing took them)\n"
                    self._waiting.append(line.encode())
                    self._dropped = 0
                rest = memoryview(b"".join(self._waiting))
                self._waiting.clear()
            while rest and not gone:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except OSError:  # there is nobody left to tell
                    gone = True
            with self._changed:
                self._size, self._stalled = sum(map(len, self._waiting)), False
                self._changed.notify_all()
        os.close(self._descriptor)


@contextmanager
def counting(out: Console) -> Iterator[Callable[[str, int], None]]:
    """Yields a function that shows a description and a count on a terminal; the line is removed."""
    columns = (TextColumn("{task.description}", markup=False), TextColumn("{task.completed:,}"))
    progress = Progress(*columns, TimeElapsedColumn(), console=out, transient=True)
    task = progress.add_task("", total=None)

    def show(what: str, done: int) -> None:
        if out.is_terminal:
            progress.start()
            progress.update(task, description=what, completed=done)

    try:
        yield show
    finally:
        if progress.live.is_started:  # else it would leave an empty line
            progress.stop()


@contextmanager
def quiet(log_path: Path) -> Iterator[Console]:
    """Redirects the output of libraries to a file; yields a console on the real standard output."""
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    log_file = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # If no thread can be started, the error is for the user, and not for the file.
    # A handler flushes each message, also on the event loop and on the trainer's thread.
    log_text = threaded_text(os.dup(log_file), "rlax-log", flushes=False)
    real = threaded_text(os.dup(out), "rlax-terminal")
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    handler = log_to(log_text)
    try:
        yield console(real)
    finally:
        logging.getLogger().removeHandler(handler)
        log_text.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
        for descriptor in (out, err, log_file):
            os.close(descriptor)
        real.close()
