"""Which version is published again: that of a part which two processes have found wrong."""

import asyncio
from types import SimpleNamespace
from typing import Any

from rlax_plugin.run.controller.controller import Controller


def state(number: int, *paths: str) -> Any:
    """What ``Controller.version_damaged`` reads, with this version as the newest."""
    return SimpleNamespace(
        _visible=SimpleNamespace(version=number, all_paths=paths),
        _again=set(),
        _found_wrong={},
        _damaged=-1,
        _is_damaged=asyncio.Event(),
        dashboard=SimpleNamespace(message=lambda text: None),
    )


def test_two_processes_are_needed_and_a_later_change_of_the_same_part_counts() -> None:
    run = state(3, "/w/base", "/w/base_1")
    for path, process in (("/w/base", "a"), ("/w/base", "a"), ("/elsewhere", "b")):
        Controller.version_damaged(run, path, process)
        assert not run._is_damaged.is_set()
    Controller.version_damaged(run, "/w/base", "b")
    assert run._is_damaged.is_set() and run._damaged == 3
    # The trainer was computing the next step, whose version changes the same damaged part.
    run._is_damaged.clear()
    run._visible = SimpleNamespace(version=4, all_paths=("/w/base", "/w/base_1", "/w/base_2"))
    Controller.version_damaged(run, "/w/base", "c")
    assert run._is_damaged.is_set() and run._damaged == 4
    run._is_damaged.clear()
    run._again.add(4)
    Controller.version_damaged(run, "/w/base", "d")
    assert not run._is_damaged.is_set()
