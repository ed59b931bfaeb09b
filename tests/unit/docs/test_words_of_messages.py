"""Help, descriptions, errors and every other text of the code are plain words of the field."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_words import found
from typer.main import get_group

from rlax_plugin.cli import app
from rlax_plugin.commands import reference

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted((ROOT / "rlax_plugin/commands/scaffold/templates").rglob("*.jinja"))
PRESETS = ROOT / "plugins/rlax_objectives/presets.yml"
SOURCES = sorted(
    path
    for folder in ("rlax_plugin", "plugins", "maxtext_overrides")
    for path in (ROOT / folder).rglob("*.py")
    if "_pb2" not in path.name  # generated from rlax.proto
)


def texts(source: str) -> Iterator[str]:
    """Strings of a module that have several words, with `` for what is formatted into them."""
    tree = ast.parse(source)
    ignored: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            ignored.add(node.value)  # a docstring
        elif isinstance(node, ast.JoinedStr) and node not in ignored:
            ignored |= set(ast.walk(node))
            yield "".join(_text(value) or "``" for value in node.values)
        elif node not in ignored and " " in (text := _text(node)):
            yield text


def _text(node: ast.AST) -> str:
    """Of a constant; empty for anything else."""
    found = node.value if isinstance(node, ast.Constant) else ""
    return found if isinstance(found, str) else ""


def helps() -> dict[str, list[str]]:
    """Command -> its help, and that of each of its arguments and options."""
    group = get_group(app)
    certs: Any = group.commands["certs"]
    commands = {"rlax": group, **group.commands, **certs.commands}
    found = {
        name: [command.help or "", *(getattr(p, "help", None) or "" for p in command.params)]
        for name, command in commands.items()
    }
    assert len(found) > 15 and all(texts[0] for texts in found.values())
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_texts_of_a_module_are_plain_words(path: Path) -> None:
    assert [hit for text in texts(path.read_text()) for hit in found(text)] == []


@pytest.mark.parametrize(("name", "shown"), helps().items(), ids=lambda value: str(value)[:20])
def test_help_is_plain_words(name: str, shown: list[str]) -> None:
    assert [hit for text in shown for hit in found(text)] == []


def test_descriptions_of_keys_and_options_are_plain_words() -> None:
    shown = [*reference.sections(), *(part for _, part in reference.parts())]
    meanings = [key.meaning for keys in shown for key in keys.keys]
    assert len(meanings) > 150
    assert [hit for text in (*meanings, *(k.text for k in shown)) for hit in found(text)] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_what_new_plugin_writes_is_plain_words(path: Path) -> None:
    assert found(path.read_text()) == []


def test_a_message_is_found_wherever_it_is_put_together() -> None:
    source = '''
def f(x):
    """It was drawn."""
    reason = f"group {x} was " "drawn"
    raise ValueError(reason if x else "nobody waits")
'''
    assert list(texts(source)) == ["group `` was drawn", "nobody waits"]
    assert all(found(text) for text in texts(source))
