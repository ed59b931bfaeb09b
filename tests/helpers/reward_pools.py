"""Reward pools with real processes, in a test's directory, and what they were given."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import eventually

from rlax_plugin.base.types import Episode, Prompt, Sampled, Score, Trajectory, Turn, Unscored
from rlax_plugin.config import RlaxSection
from rlax_plugin.reward.messages import lengths_of
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.reward.process import Failures, Form, scores_of

LIMIT_S = 240.0
_HEAD = "from rlax_plugin.api import *\nfrom rlax_plugin.api import hookimpl\n"


def write_plugin(directory: Path, patch: pytest.MonkeyPatch, code: str) -> None:
    """A plug-in ``own_parts``, for processes that this one starts, whose directory this becomes."""
    (directory / "own_parts.py").write_text(_HEAD + code)
    patch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
    patch.chdir(directory)


def section(*rewards: str, **changes: object) -> RlaxSection:
    given = {
        "plugins": ["own_parts"],
        "prompt_source": {"name": "x"},
        "rewards": [{"name": name} for name in rewards],
        "deadlines": {"reward_s": 120.0, "startup_s": 120.0, "episode_s": 120.0},
    }
    return RlaxSection.model_validate(given | changes)


def with_pool(
    config: RlaxSection,
    work: Callable[[RewardPool], Awaitable[None]],
    note: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> None:
    """Does some work with a pool that is started, and closes it.

    Args:
      options: further ones of the pool.
    """

    async def main() -> None:
        pool = RewardPool(config, Path(), note=note, **options)
        try:
            await pool.start()
            await work(pool)
        finally:
            await pool.close()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


Work = Callable[[RewardPool], Awaitable[None]]


@contextmanager
def shared_pool(
    config: RlaxSection, directory: Path, code: str, **options: Any
) -> Iterator[Callable[[Work], None]]:
    """Does the work of several tests with one pool, whose process costs a second to start.

    Args:
      code: see ``write_plugin``.
      options: further ones of the pool.
    """

    async def started() -> RewardPool:
        pool = RewardPool(config, directory, note=lambda line: None, **options)
        await pool.start()
        return pool

    with asyncio.Runner() as runner:

        def do(work: Work) -> None:
            runner.run(asyncio.wait_for(work(pool), LIMIT_S))
            assert pool.replaced == 0, "the process must outlive the test"

        with pytest.MonkeyPatch.context() as patch:
            write_plugin(directory, patch, code)
            pool = runner.run(started())
        try:
            yield do
        finally:
            runner.run(pool.close())


def answers_of(
    forms: Sequence[Form],
    given: Sequence[Episode],
    asked: Prompt | None = None,
    failures: Failures | None = None,
) -> list[dict[str, Any]]:
    """What a reward process answers, computed in this one."""

    async def call(form: Form, arguments: tuple[Any, ...]) -> Any:
        value = form.method(*arguments)
        return await value if form.waits else value

    lengths = [lengths_of(one) for one in given]
    return asyncio.run(
        scores_of(
            forms,
            asked or prompt(),
            given,
            lengths,
            call=call,
            at=lambda number: None,
            failures=failures or Failures(),
        )
    )


def prompt(name: str = "p", **metadata: object) -> Prompt:
    return Prompt(name, np.array([1, 2, 3], np.int32), "1+2=", "3", metadata)


def sampled(*tokens: int, finish: str = "stop") -> Sampled:
    ones = np.ones(len(tokens))
    return Sampled(
        7,
        np.array(tokens, np.int32),
        ones.astype(np.float32),
        ones.astype(np.int32),
        finish,
        ("w",),
    )


def episode(text: str, index: int = 0, turns: Sequence[Turn] | None = None) -> Episode:
    """Of one turn of two tokens unless told otherwise."""
    one = (Turn(prompt().tokens, sampled(4, 5)),)
    return Episode(index, (Trajectory(tuple(turns or one)),), text)


def episodes(*texts: str) -> list[Episode]:
    return [episode(text, index) for index, text in enumerate(texts)]


def totals(scores: Sequence[Score | Unscored]) -> list[float | None]:
    return [s.total if isinstance(s, Score) else None for s in scores]


def reason(score: object) -> str:
    """Why there is no score, or no outcome."""
    assert isinstance(score, Unscored), score
    return score.reason


async def there(path: Path) -> None:
    """Returns once a file exists."""
    await eventually(path.exists, f"{path} is not made")
