"""Renders chat templates in a separate process, with limits.

A template comes with a downloaded model. It can read only its messages, but it can take any time
and memory, such as ``{{ 'a' * 10**10 }}``. So neither its compilation nor its rendering, nor the
encoding of its output, happens in the calling process.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.processes.asked import (
    FROM_OUTSIDE,
    AskedProcess,
    EndedError,
    Ending,
    with_this_path,
)
from rlax_plugin.base.text.harmless import one_line

_MOST_BYTES = 256 << 20  # of an answer: some 40 million tokens
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
        self._running: AskedProcess | None = None
        self._known: set[int] = set()  # templates that it has read

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

    def _start(self) -> AskedProcess:
        self._known.clear()
        self._running = AskedProcess(
            "rlax_plugin.base.tokens.template_process",
            environment={
                **with_this_path(),
                "RAYON_NUM_THREADS": str(min(_THREADS, os.cpu_count() or 1)),
                "MALLOC_ARENA_MAX": "2",  # an arena of each thread would count as used
            },
            keeps_log=True,
        )
        return self._running

    def _exchange(self, line: bytes, limit_s: float, key: str) -> dict[str, Any]:
        process = self._running or self._start()
        process.send(line)
        try:
            return json.loads(process.receive(limit_s, _MOST_BYTES))
        except TimeoutError:
            self._stop(process)
            raise RenderError(f"it took longer than {limit_s:g} s ({key})") from None
        except OverflowError:
            self._stop(process)
            raise RenderError("it writes too much") from None
        except EndedError as error:
            begun, ending = error.begun, self._stop(process)
        except BaseException:  # such as a Ctrl-C: the answer must not be taken for the next one
            self._stop(process)
            raise
        said = f": {one_line(ending.said, 200)}" if ending.said else ""
        ended = f"its process ended {_how(ending.status)}{said}"
        # Limits end it with other signals. Of two that the system kills, the template is to blame.
        if (ending.status == 0 and not begun) or -ending.status in FROM_OUTSIDE:
            raise _NotToBlameError(ended)
        raise RenderError(ended)

    def _stop(self, process: AskedProcess) -> Ending:
        self._running = None
        return process.ending(_LAST_S)  # it may be about to end by itself


def _how(status: int) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        return f"by {name}, as it does if it needs too much memory or processor time"
    return f"with status {status}"


_PROCESS, _LOCK = _Process(), threading.Lock()
