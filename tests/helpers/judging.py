"""Rewards that ask a server, and what a language model answers that grades completions."""

import asyncio
import re
from pathlib import Path
from typing import Any

import rlax_http
from hostile_server import Asked
from reward_pools import prompt
from sections import section_with

from rlax_plugin.api import BuildContext, Score

_MARKER = re.compile(r"Score [a-z]{10}:")


def scored(
    choice: dict[str, Any], *texts: str, reward_s: float = 60.0, **metadata: Any
) -> list[Any]:
    """What a reward gives completions that it scores side by side; an exception if no score."""
    section = section_with(rewards=[choice], deadlines={"reward_s": reward_s})
    (given,) = section.rewards
    extension = rlax_http.rlax_register_reward()[given.name]

    async def main() -> list[Any]:
        config = extension.config_class(**given.options)
        reward = extension.build(config, BuildContext(Path(), 0, section))
        try:
            calls = [reward(prompt(**metadata), text) for text in texts]
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            await reward.client.close()

    return asyncio.run(main())


def totals(scores: list[Any]) -> list[float | None]:
    return [one.total if isinstance(one, Score) else None for one in scores]


def chat(text: object, finish: str = "stop", tokens: object = 20) -> dict:
    """An answer of the server, in the protocol of OpenAI."""
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return {"choices": choices, "usage": {"total_tokens": tokens}}


def question(asked: Asked) -> str:
    return asked.body["messages"][-1]["content"]


def marker(asked: Asked) -> str:
    """What the judge is told to write before its verdict; it stands last in every question."""
    return _MARKER.findall(question(asked))[-1]
