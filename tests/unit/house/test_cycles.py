"""No module imports itself through others, not even in a function or for types alone."""

from __future__ import annotations

import ast
from pathlib import Path

import house_counts as house


def test_no_imports_form_a_cycle() -> None:
    modules = house.read(house.ROOT)
    assert house.import_cycles(modules) == []
    assert house.cycles(house.room_arrows(modules)) == []


def modules_of(**texts: str) -> dict[str, house.Module]:
    """Modules of a package ``p``, by name."""
    return {
        f"p.{name}": house.Module(Path("p", f"{name}.py"), f"p.{name}", text, ast.parse(text))
        for name, text in texts.items()
    }


def test_imports_in_functions_and_for_types_count() -> None:
    modules = modules_of(
        a="from p.b import x\n",
        b="def f():\n    import p.c\n",
        c="if TYPE_CHECKING:\n    from p import a\n",
        d="from p import a, b\n",
    )
    assert house.import_cycles(modules) == [["p.a", "p.b", "p.c"]]


def test_relative_imports_count() -> None:
    assert house.import_cycles(modules_of(a="from .b import x", b="from . import a")) == [
        ["p.a", "p.b"]
    ]


def test_lines_of_code_are_without_docstrings_comments_and_blank_lines() -> None:
    text = '"""Module."""\n\n# why\nx = """\ntext\n"""  # three\n\ndef f():\n    """What."""\n'
    (module,) = modules_of(a=text).values()
    assert house.code_lines(module) == 4
    assert house.questions(module) == 1


def test_callables_and_large_constructors_are_counted() -> None:
    arguments = ", ".join(f"a{n}: int" for n in range(8))
    text = (
        "class A:\n    x: Callable[[], int]\n    y: int\n"
        f"    def __init__(self, {arguments}, f: Callable[[], None] | None = None): ...\n"
        f"class B:\n    def __init__(self, {arguments}): ...\n"
    )
    (module,) = modules_of(a=text).values()
    assert house.callables(module) == 2
    assert house.large_constructors(module) == ["p.a.A"]
