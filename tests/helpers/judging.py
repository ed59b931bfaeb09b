"""What a language model answers that grades completions, in the protocol of OpenAI."""

from __future__ import annotations

import re

from hostile_server import Asked

_MARKER = re.compile(r"Score [a-z]{10}:")


def chat(text: object, finish: str = "stop", tokens: object = 20) -> dict:
    """An answer of the server."""
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return {"choices": choices, "usage": {"total_tokens": tokens}}


def question(asked: Asked) -> str:
    return asked.body["messages"][-1]["content"]


def marker(asked: Asked) -> str:
    """What the judge is told to write before its verdict; it stands last in every question."""
    return _MARKER.findall(question(asked))[-1]
