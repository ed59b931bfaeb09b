"""The first words of commands, which come before anything that takes long."""

from __future__ import annotations

from command_line import rlax

LATER = "importing rlax and reading the config, typically about 3 s"


def test_json_stays_alone() -> None:
    result = rlax("eval", "no such run", "--json")
    assert result.exit_code == 2 and LATER not in result.stdout
    assert LATER in rlax("eval", "no such run").stdout
