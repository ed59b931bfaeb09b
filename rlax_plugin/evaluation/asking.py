"""Generates and scores many prompts, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from rlax_plugin.evaluation.evaluator import Evaluator
from rlax_plugin.evaluation.problems import Answered, ProblemSet

Handed = Callable[[int, Answered], Awaitable[None]]


async def ask_all(
    evaluator: Evaluator,
    problems: ProblemSet,
    wanted: Iterable[int],
    version: int,
    *,
    at_once: Callable[[], int],
    hand: Handed,
) -> None:
    """Generates and scores some prompts of a set, in their order.

    Memory does not grow with the number of prompts: a prompt is read when its generation begins,
    and its answers are dropped once they are handed over.

    Args:
      wanted: indices into ``problems.prompts``.
      version: minimum version of the weights.
      at_once: returns the maximum number of unfinished prompts; called whenever some have ended.
      hand: awaited with the index and the answers of each prompt, in the order in which they end.

    Raises:
      RlaxError: a prompt cannot be generated; the unfinished ones are cancelled.
    """
    going: dict[asyncio.Task[Answered], int] = {}
    upcoming = iter(wanted)
    more = True
    try:
        while more or going:
            while more and len(going) < max(1, at_once()):
                if (index := next(upcoming, None)) is None:
                    more = False
                    break
                answered = evaluator.answered(problems, problems.prompts[index], index, version)
                going[asyncio.ensure_future(answered)] = index
            if going:
                ended, _ = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    await hand(going.pop(task), task.result())
    finally:
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
