"""A command ends with its own status although an engine does not come out of a C++ library."""

import os
import threading

import pytest

from rlax_plugin.tools import cli


@pytest.mark.parametrize(
    "name, status, left_by", [("rlax-engine", 130, [130]), ("rlax-store", 130, []), ("", 0, [])]
)
def test_a_command_exits_at_once_while_an_engine_blocks_its_thread(
    monkeypatch, name, status, left_by
):
    ended, exits = threading.Event(), []
    monkeypatch.setattr(os, "_exit", exits.append)

    def app() -> None:
        if name:
            threading.Thread(target=ended.wait, args=(60,), name=name, daemon=True).start()
        raise SystemExit(status)

    monkeypatch.setattr(cli, "app", app)
    try:
        with pytest.raises(SystemExit):
            cli.main()
    finally:
        ended.set()
    assert exits == left_by
