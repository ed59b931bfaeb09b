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

ONLY_LAST = "so only the last answer can train (turns: last)"
"""Part of the reason of a ``TurnsError`` that training the last answer alone avoids."""

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
    tools: Sequence[Mapping[str, Any]],
    limit_s: float,
) -> list[list[int]]:
    """Returns the tokens of conversations, which have the same tools, as JSON schemas.

    Any thread may call this. The process is started by the first call, and again after a call that
    ended it.

    Raises:
      RenderError: the template raised something, or needed more than its limits.
      ValueError: JSON cannot hold a message.
    """
    asked = {"prompt": generation_prompt, "given": conversations, "tools": tools}
    return _answered(template, asked, limit_s)["tokens"]


@dataclass(frozen=True, slots=True)
class RenderedTurns:
    """A whole conversation, with the tokens that some of its messages take.

    Attributes:
      tokens: of the whole conversation.
      spans: for each of the messages, its first token and the one behind its last.
      marked: places of the tokens that the template's ``{% generation %}`` marks; None if it
        has none, or the conversation spells special tokens, with which it cannot be asked.
    """

    tokens: list[int]
    spans: list[tuple[int, int]]
    marked: list[int] | None


class TurnsError(RlaxError):
    """A conversation does not tell the tokens of its answers; says why, but not which template."""


class TooLongError(RlaxError):
    """A conversation has more tokens than are of use."""


def rendered_turns(
    template: Template,
    messages: Sequence[Mapping[str, Any]],
    turns: Sequence[int],
    tools: Sequence[Mapping[str, Any]],
    limit_s: float,
    most_tokens: int | None = None,
) -> RenderedTurns:
    """Returns the tokens of a conversation, and those of some of its answers in it.

    An answer begins behind the messages before it with a generation prompt, and ends where the
    conversation ends if nothing follows it. Both have to be beginnings of the whole conversation.

    Args:
      turns: indices of the answers, ascending; the first message is none.
      tools: descriptions of tools, as JSON schemas; () if there are none.
      most_tokens: of the whole conversation; None: any number.

    Raises:
      TooLongError: it has more than ``most_tokens``.
      TurnsError: the conversation up to an answer is no beginning of the whole one.
      RenderError, ValueError: see ``rendered``.
    """
    asked = {"given": messages, "turns": turns, "tools": tools, "most_tokens": most_tokens}
    answer = _answered(template, asked, limit_s)
    if "too_long" in answer:
        raise TooLongError(f"has {answer['too_long']:,} tokens")
    if "differs" in answer:
        raise TurnsError(answer["differs"])
    spans = [(begin, end) for begin, end in answer["spans"]]
    return RenderedTurns(answer["tokens"], spans, answer["marked"])


def _answered(template: Template, asked: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    limits = {"limit_s": limit_s, "memory_bytes": template.limits.memory_bytes}
    try:
        line = json.dumps({"number": template.number, "limits": limits, **asked}) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a message cannot be written as JSON: {error}") from None
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
    return answer


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
