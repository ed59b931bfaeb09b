"""The first words of commands, which come before anything that takes long."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from command_line import rlax

LATER = "importing rlax and reading the config, typically about 3 s"


@pytest.mark.parametrize(
    ("module", "function", "arguments", "first"),
    [
        ("rlax_plugin.start.run", "train", ("train", "a.yml"), "rlax train a.yml"),
        ("rlax_plugin.commands.evaluate.command", "evaluate", ("eval", "a"), "rlax eval a"),
    ],
)
def test_they_are_written_before_the_imports(
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    function: str,
    arguments: tuple[str, ...],
    first: str,
) -> None:
    when_imported = list[str]()

    class Heavy(ModuleType):
        """A module that takes long to import."""

        def __getattr__(self, name: str) -> Any:
            if name in (function, "Asked"):
                when_imported.append(sys.stdout.getvalue())  # type: ignore[attr-defined]
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, module, Heavy(module))
    written = list[str]()

    class Out:
        """Standard output that keeps what was written before a flush."""

        def __init__(self) -> None:
            self._text = ""

        def write(self, text: str) -> int:
            self._text += text
            return len(text)

        def flush(self) -> None:
            written.append(self._text)

        def getvalue(self) -> str:
            return written[-1] if written else ""

        def isatty(self) -> bool:
            return False

    from rlax_plugin.cli import app

    monkeypatch.setattr(sys, "stdout", Out())
    with pytest.raises(ImportError):
        app(list(arguments), standalone_mode=False)
    assert when_imported[0] == f"{first}: {LATER}\n"


def test_json_stays_alone() -> None:
    result = rlax("eval", "no such run", "--json")
    assert result.exit_code == 2 and LATER not in result.stdout
    assert LATER in rlax("eval", "no such run").stdout
