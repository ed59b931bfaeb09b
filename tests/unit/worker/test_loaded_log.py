"""The lines of a worker's log about the versions that it has loaded."""

from __future__ import annotations

import asyncio

import pytest
from waiting import eventually

from rlax_plugin.worker.loaded_log import LoadedLog


def test_the_first_version_is_logged_at_once_and_those_of_a_pause_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def load() -> None:
        loaded = LoadedLog(pause_s=3600)
        for version in (0, 1, 2, 4):
            loaded.add(version)
        assert caplog.messages == ["serving version 0"]
        loaded.flush()
        loaded.flush()  # nothing waits
        loaded.add(5)
        loaded.flush()

    caplog.set_level("INFO", "rlax.worker")
    asyncio.run(load())
    assert caplog.messages == [
        "serving version 0",
        "serving version 4 (3 versions since the last line)",
        "serving version 5",
    ]


def test_the_newest_version_is_logged_after_the_pause(caplog: pytest.LogCaptureFixture) -> None:
    async def load() -> None:
        loaded = LoadedLog(pause_s=0.01)
        loaded.add(0)
        loaded.add(1)
        await eventually(lambda: len(caplog.messages) >= 2)

    caplog.set_level("INFO", "rlax.worker")
    asyncio.run(load())
    assert caplog.messages == ["serving version 0", "serving version 1"]
