"""A reward that is late as soon as it hangs: no machine is too slow for its deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlax_plugin.rewards.handle import RewardProcess


def late_at_once(patch: pytest.MonkeyPatch, hanging: Path) -> None:
    """Whoever waits for an answer is told that it is late once the reward has made a file.

    Args:
      hanging: the file; it is removed, so that the next reward may hang as well.
    """
    in_time = RewardProcess.line

    async def line(process: RewardProcess, *args: Any, **kwargs: Any) -> bytes:
        answer = asyncio.ensure_future(in_time(process, *args, **kwargs))
        try:
            while not (await asyncio.wait({answer}, timeout=0.01))[0]:
                if hanging.exists():
                    hanging.unlink()
                    raise TimeoutError
            return answer.result()
        finally:
            answer.cancel()

    patch.setattr(RewardProcess, "line", line)
