"""Consoles that print harmless text only, and the redirection of library output."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from rlax_plugin.text.harmless import harmless


class HarmlessConsole(Console):
    """Makes text harmless when it is shown, also text recorded by earlier versions.

    Control codes that rich itself sends, such as colours, are not part of the text. Square brackets
    in it are plain square brackets.
    """

    def __init__(self, **options: Any):
        super().__init__(markup=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(harmless(text), **options)  # before widths are measured

    def render(self, renderable: RenderableType, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for segment in super().render(renderable, *args, **kwargs):
            if segment.control:
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


class _LineConsole(HarmlessConsole):
    """Leaves it to the terminal to wrap lines of text: a command of several lines is none."""

    def print(self, *objects: Any, **options: Any) -> None:
        if all(isinstance(one, str) for one in objects):
            options.setdefault("soft_wrap", True)
        super().print(*objects, **options)


def console(out: IO[str]) -> Console:
    """Returns a console that prints paths, commands and messages unchanged, each in one line."""
    return _LineConsole(file=out, highlight=False, soft_wrap=not out.isatty())


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
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
    real = os.fdopen(os.dup(out), "w", buffering=1)
    try:
        yield console(real)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
        for descriptor in (out, err, log_file):
            os.close(descriptor)
        real.close()
