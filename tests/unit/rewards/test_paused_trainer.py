"""A trainer process that is paused, as by a busy machine, blames no reward for it."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from rlax_plugin.rewards.handle import RewardProcess
from rlax_plugin.rewards.output import RewardOutput


def test_an_answer_that_came_while_the_trainer_was_paused_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        process = RewardProcess({}, RewardOutput(tmp_path / "rewards.log"), 1.0)
        ours, theirs = socket.socketpair()
        process._reader, process._writer = await asyncio.open_unix_connection(sock=ours)

        def pause() -> None:
            theirs.sendall(b"an answer\n")
            time.sleep(0.3)

        asyncio.get_running_loop().call_soon(pause)
        assert await process.line(0.1) == b"an answer\n"
        with pytest.raises(TimeoutError):
            await process.line(0.1)
        # The one that was given up does not take what comes later.
        theirs.sendall(b"another\n")
        assert await process.line(10.0) == b"another\n"
        process._writer.close()
        theirs.close()

    asyncio.run(main())
