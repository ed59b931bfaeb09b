"""Episodes of the environment ``tools``, in which the policy gives chosen answers."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from rlax_tools.environment import Tools

from rlax_plugin.api import Outcome, Prompt
from rlax_plugin.base.types import Episode, Key, Sampled
from rlax_plugin.rollout.episodes.playing import NoLog, Playing
from rlax_plugin.testing import make_sampled

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def call(name: str, **arguments: Any) -> str:
    content = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{content}\n</tool_call>"


def played(
    tools: Tools,
    context: Any,
    answers: Sequence[str],
    stop: bool = True,
    prompt: Prompt | None = None,
    close: bool = True,
) -> tuple[Outcome, Episode]:
    """Has the policy give these answers."""
    source = tools.source
    assert source.tokenizer is not None
    end = [source.tokenizer.answer_end] if stop else []
    sampled = [
        make_sampled(
            tokens=np.array([*source.tokenizer.encode(answer), *end], np.int32),
            finish="stop" if stop else "length",
        )
        for answer in answers
    ]

    async def ask(key: Key, context: np.ndarray, most: int, oldest: int) -> Sampled:
        return sampled[key.turn]

    if prompt is None:
        (prompt,) = source.prompts("train")
    playing = Playing(context.section, source, Key("train", 0, 0), None, ask=ask, log=NoLog())

    async def play() -> Outcome:
        try:
            return await tools.play(prompt, playing)  # pyright: ignore[reportArgumentType]
        finally:
            if close:
                await tools.close()

    outcome = asyncio.run(play())
    return outcome, playing.episode(None, cut=False)
