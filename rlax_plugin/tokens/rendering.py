"""Renders chat templates in a separate process, with limits.

A template comes with a downloaded model. It can read only its messages, but it can take any time
and memory, such as ``{{ 'a' * 10**10 }}``. So neither its compilation nor its rendering, nor the
encoding of its output, happens in the calling process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rlax_plugin.errors import RlaxError
from rlax_plugin.text.harmless import one_line

_MOST_BYTES = 256 << 20  # of an answer: some 40 million tokens
_PIECE = 1 << 16  # bytes that are read or written at once
_LAST_S = 0.2  # for a process that has closed its output
_THREADS = 8  # at most, which encode; each reserves memory
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of time and memory for a chat template.

    Attributes:
      render_s: seconds for one conversation: ``rlax.deadlines.template_s``.
      start_s: seconds until the process has started and read a tokenizer:
        ``rlax.deadlines.startup_s``.
      memory_bytes: memory in addition to the process's use before.
    """

    render_s: float = 10.0
    start_s: float = 120.0
    memory_bytes: int = 1 << 30


DEFAULT_LIMITS = RenderLimits()


class RenderError(RlaxError):
    """A template could not be rendered; says why, but not which template."""


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template in the form that the other process needs.

    Attributes:
      directory: directory of its tokenizer.
      source: the template itself, or several by their names.
      arguments: variables that it gets in addition to the messages.
      limits: limits of time and memory.
      number: number that is unique in this process.
    """

    directory: Path
    source: str | Mapping[str, str]
    arguments: Mapping[str, Any]
    limits: RenderLimits = DEFAULT_LIMITS
    number: int = field(default_factory=lambda: next(_numbers))


def rendered(
    template: Template,
    conversations: Sequence[Sequence[Mapping[str, Any]]],
    generation_prompt: bool,
    limit_s: float,
) -> list[list[int]]:
    """Returns the tokens of conversations.

    Any thread may call this. The process is started by the first call, and again after a call that
    ended it.

    Raises:
      RenderError: the template raised something, or needed more than its limits.
      ValueError: JSON cannot hold a message.
    """
    try:
        given = json.dumps(conversations)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a message cannot be written as JSON: {error}") from None
    number, prompt = template.number, json.dumps(generation_prompt)
    limits = json.dumps({"limit_s": limit_s, "memory_bytes": template.limits.memory_bytes})
    line = f'{{"number": {number}, "limits": {limits}, "prompt": {prompt}, "given": {given}}}\n'
    with _LOCK:
        try:
            answer = _PROCESS.ask(template, line.encode(), limit_s)
        except _NotToBlameError:
            try:
                answer = _PROCESS.ask(template, line.encode(), limit_s)
            except _NotToBlameError as error:
                raise RenderError(str(error)) from None
    if "error" in answer:
        raise RenderError(answer["error"])
    return answer["tokens"]


class _NotToBlameError(Exception):
    """The process ended because it was idle, or was killed from outside; a call may be repeated."""


class _Process:
    """The rendering process, if it runs."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._known: set[int] = set()  # templates that it has read
        self._end: Any = None

    def ask(self, template: Template, line: bytes, limit_s: float) -> dict[str, Any]:
        """Sends a line to the process, starting it if necessary, and returns its answer."""
        if self._running is None:
            self._start()
        if template.number not in self._known:
            asked = {
                "number": template.number,
                "directory": str(template.directory),
                "source": template.source,
                "arguments": dict(template.arguments),
            }
            start_s = template.limits.start_s
            key = "rlax.deadlines.startup_s"
            answer = self._exchange(json.dumps(asked).encode() + b"\n", start_s, key)
            if "error" in answer:
                return answer
            self._known.add(template.number)
        return self._exchange(line, limit_s, "rlax.deadlines.template_s")

    def _start(self) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "RAYON_NUM_THREADS": str(min(_THREADS, os.cpu_count() or 1)),
            "MALLOC_ARENA_MAX": "2",  # an arena of each thread would count as used
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process ends
        self._running = process = subprocess.Popen(
            [sys.executable, "-m", "rlax_plugin.tokens.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        assert process.stdin is not None and process.stdout is not None
        for pipe in (process.stdin, process.stdout):
            os.set_blocking(pipe.fileno(), False)
        self._known.clear()
        self._end = weakref.finalize(self, _ended, process, self._log)

    def _exchange(self, line: bytes, limit_s: float, key: str) -> dict[str, Any]:
        process = self._running
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            data = _exchanged(process.stdin.fileno(), process.stdout.fileno(), line, limit_s)
        except TimeoutError:
            self._stop()
            raise RenderError(f"it took longer than {limit_s:g} s ({key})") from None
        except OverflowError:
            self._stop()
            raise RenderError("it writes too much") from None
        except BaseException:  # such as a Ctrl-C: the answer must not be taken for the next one
            self._stop()
            raise
        if data.endswith(b"\n"):
            return json.loads(data)
        status, said = self._stop()
        ended = f"its process ended {_how(status)}{said}"
        # Limits end it with other signals. Of two that the system kills, the template is to blame.
        if (status == 0 and not data) or status == -signal.SIGKILL:
            raise _NotToBlameError(ended)
        raise RenderError(ended)

    def _stop(self) -> tuple[int, str]:
        """Ends the process; returns its exit status and its last output."""
        process, log, self._running = self._running, self._log, None
        assert process is not None and log is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_S)  # it may be about to end by itself
        log.seek(max(0, log.seek(0, os.SEEK_END) - _PIECE))
        lines = log.read().decode(errors="replace").strip().splitlines()
        self._end()
        return process.returncode, f": {one_line(lines[-1], 200)}" if lines else ""


def _ended(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for file in (process.stdin, process.stdout, log):
        assert file is not None
        with contextlib.suppress(OSError):
            file.close()


def _how(status: int) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        return f"by {name}, as it does if it needs too much memory or processor time"
    return f"with status {status}"


def _exchanged(to: int, back: int, line: bytes, limit_s: float) -> bytes:
    """Writes a line and reads one; returns less if the other end closes.

    Raises:
      TimeoutError: that took longer.
      OverflowError: the answer is too long.
    """
    until_s = time.monotonic() + limit_s
    unsent, found = memoryview(line), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(to, selectors.EVENT_WRITE)
        selector.register(back, selectors.EVENT_READ)
        while True:
            ready = selector.select(max(0.0, until_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if key.fd == to:
                    try:
                        unsent = unsent[os.write(to, unsent[:_PIECE]) :]
                    except BrokenPipeError:
                        unsent = unsent[:0]  # what it has answered is still there
                    if not unsent:
                        selector.unregister(to)
                    continue
                data = os.read(back, _PIECE)
                found += data
                if not data or data.endswith(b"\n"):
                    return bytes(found)
                if len(found) > _MOST_BYTES:
                    raise OverflowError


_PROCESS, _LOCK = _Process(), threading.Lock()
