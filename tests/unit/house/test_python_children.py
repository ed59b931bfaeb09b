"""Each Python child is started by ``python_command``, which keeps its working directory out."""

from __future__ import annotations

import ast

import pytest
from documents import ROOT

# It is where the others are to go, and a bare Python with even less on its path.
OWN = {ROOT / "rlax_plugin/base/processes/python.py", ROOT / "rlax_plugin/reward/sandbox/layers.py"}
SOURCES = sorted(
    path
    for room in ("rlax_plugin", "plugins", "maxtext_overrides")
    for path in (ROOT / room).rglob("*.py")
    if path not in OWN
)


def starts(source: str) -> list[int]:
    """Returns the lines in which the path of this Python is an argument, or part of a list."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        inside = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        lines += [one.lineno for one in inside if ast.unparse(one) == "sys.executable"]
    return lines


def test_no_other_module_starts_a_python() -> None:
    found = {str(path.relative_to(ROOT)): starts(path.read_text()) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert len(SOURCES) > 500


@pytest.mark.parametrize(
    "source",
    [
        "run([sys.executable, '-m', 'pip'])",
        "command = (sys.executable, '-c', code)",
        "spawn(*(sys.executable, '-m', 'x'))",
        "create_subprocess_exec(sys.executable, '-m', 'x')",
    ],
)
def test_each_way_of_starting_one_is_found(source: str) -> None:
    assert starts(source) == [1]
