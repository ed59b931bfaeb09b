"""The process that renders chat templates: ``python -m rlax_plugin.base.tokens.template_process``.

It reads lines of JSON from standard input and answers each with one on standard output. It ends
with its parent, or if it gets no line for ``_IDLE_S``. The system limits the resources of a
template here, so that it ends even if the parent is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import signal
import time
from pathlib import Path
from typing import Any

from rlax_plugin.base.processes.inside import Lines, memory_with
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.rendering import ONLY_LAST
from rlax_plugin.base.tokens.tokenizer import load_fast

_IDLE_S = 600.0
_MOST_TOKENS = 1 << 24  # of all conversations of a line
_AT_ONCE = 1 << 20  # tokens of the beginnings of a conversation that are encoded together
_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_UNLIMITED = resource.RLIM_INFINITY

Loaded = dict[int, tuple[Any, dict[str, Any]]]
"""Number of a template -> its tokenizer and its variables."""


def _load(asked: dict[str, Any], loaded: Loaded) -> dict[str, Any]:
    fast = load_fast(Path(asked["directory"]), "tokenizer_path")
    fast.chat_template = asked["source"]
    with contextlib.suppress(Exception):  # its alphabet may be another one
        fast(["a", "b"])  # starts the threads that encode, whose memory is not the template's
    loaded[asked["number"]] = (fast, asked["arguments"])
    return {"done": True}


def _render(asked: dict[str, Any], loaded: Loaded) -> dict[str, Any]:
    fast, arguments = loaded[asked["number"]]
    tools = asked["tools"]
    arguments = {**arguments, "tools": tools} if tools else arguments
    _limit(**asked["limits"])
    try:
        if "turns" in asked:
            found = _turns(fast, arguments, asked)
        else:
            found = {"tokens": _tokens(fast, arguments, asked["given"], asked["prompt"])}
    except MemoryError:
        return {"error": f"it needs more than {asked['limits']['memory_bytes'] >> 20} MB"}
    finally:
        _unlimit()
    return found


def _tokens(
    fast: Any, arguments: dict[str, Any], conversations: list[Any], prompt: bool
) -> list[list[int]]:
    """Returns the tokens of conversations; texts that spell special tokens stay texts.

    Raises:
      ValueError: they have too many tokens; and whatever a template raises.
    """
    found = fast.apply_chat_template(
        conversations,
        add_generation_prompt=prompt,
        return_dict=False,
        sanitize_control_tokens=True,
        **arguments,
    )
    if sum(map(len, found)) > _MOST_TOKENS:
        raise ValueError(f"it writes more than {_MOST_TOKENS} tokens")
    return found


def _turns(fast: Any, arguments: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Returns the tokens of a conversation and of some of its answers; see ``rendered_turns``."""
    messages, turns = asked["given"], asked["turns"]
    (whole,) = _tokens(fast, arguments, [messages], False)
    # First of all: the beginnings of one that is far too long would take minutes.
    if asked["most_tokens"] is not None and len(whole) > asked["most_tokens"]:
        return {"too_long": len(whole)}
    decode = fast.backend_tokenizer.decode
    written = decode(whole, skip_special_tokens=False)
    spans = []
    # Some at once: they are encoded in parallel, and those of many turns need not fit into memory.
    for some in itertools.batched(turns, max(1, _AT_ONCE // max(1, len(whole)))):
        begun = _tokens(fast, arguments, [messages[:i] for i in some], True)
        ended = _tokens(fast, arguments, [messages[: i + 1] for i in some], False)
        for turn, before, through in zip(some, begun, ended, strict=True):
            spans.append([len(before), len(through)])
            for part, where in ((before, "before"), (through, "up to")):
                if whole[: len(part)] == part:
                    continue
                at = f"{where} message {turn + 1}"
                if written.startswith(decode(part, skip_special_tokens=False)):
                    return {"differs": f"has no boundary of tokens {at}, where the text goes on"}
                hint = "" if turn == turns[-1] else f", {ONLY_LAST}"
                text = f"writes the conversation {at} otherwise than in the whole one{hint}"
                return {"differs": text}
    marked = None
    if _MARKS.search(fast.get_chat_template(None, asked["tools"] or None)):
        found = fast.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True, **arguments
        )
        # Special tokens that messages spell become such tokens here.
        if found["input_ids"] == whole:
            marked = [place for place, marks in enumerate(found["assistant_masks"]) if marks]
    return {"tokens": whole, "spans": spans, "marked": marked}


def _limit(limit_s: float, memory_bytes: int) -> None:
    """Limits the time and memory that this process may use in addition to its present use."""
    _set(resource.RLIMIT_AS, memory_with(memory_bytes))
    # The process that asks ends this one after ``limit_s``, if it is still there.
    used_s = time.process_time()
    _set(resource.RLIMIT_CPU, int(used_s + limit_s * (os.cpu_count() or 1)) + 1)


def _unlimit() -> None:
    for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU):
        _set(what, _UNLIMITED)


def _set(what: int, soft: int) -> None:
    """Sets a limit that can be raised again, within the limit of the environment."""
    hard = resource.getrlimit(what)[1]
    within = hard if soft == _UNLIMITED else soft if hard == _UNLIMITED else min(soft, hard)
    resource.setrlimit(what, (within, hard))


def _answer(line: bytes, loaded: Loaded) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        return (_render if "given" in asked else _load)(asked, loaded)
    except Exception as error:  # noqa: BLE001  a template runs any expression
        return {"error": one_line(str(error)) or type(error).__name__}


def main() -> None:
    # A Ctrl-C is for the process that asks, which goes on for a while.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lines, loaded = Lines(), Loaded()
    while line := lines.next(_IDLE_S):
        lines.say(_answer(line, loaded))


if __name__ == "__main__":
    main()
