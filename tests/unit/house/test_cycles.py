"""No module imports itself through others, not even in a function.

Nor for types alone, but within its own room, where two classes may name each other.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("rlax_plugin", "maxtext_overrides", "plugins")


@dataclass(frozen=True, slots=True)
class Module:
    """A module that was read.

    Attributes:
      path: below the root.
      name: dotted, as it is imported.
    """

    path: Path
    name: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder or single file below ``rlax_plugin`` or ``maxtext_overrides``; a plug-in."""
        parts = self.name.split(".")
        return parts[0] if self.path.parts[0] == "plugins" else ".".join(parts[:2])


def read(root: Path) -> dict[str, Module]:
    """Name -> module, of all code that is installed; what was generated from protocols is not."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            below = path.relative_to(root)
            parts = below.with_suffix("").parts[folder == "plugins" :]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(below, name, ast.parse(path.read_text()))
    return found


def imported(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """The modules that a module imports, wherever in it; a package's name is its ``__init__``."""
    of_types = {
        id(one)
        for block in ast.walk(module.tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for one in ast.walk(block)
    }
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    found = set()
    for node in ast.walk(module.tree):
        names = set()
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join((*above, *filter(None, (node.module,))))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                names.add(inner if inner in modules else base)
        names &= modules.keys()
        if id(node) in of_types:
            names = {name for name in names if modules[name].room != module.room}
        found |= names
    return found


def cycles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """The largest sets of nodes of which each leads to each other one, sorted (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        path.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in path:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = path.index(node)
            group = path[place:]
            del path[place:]
            if len(group) > 1 or node in arrows.get(node, ()):
                found.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return sorted(found)


def import_cycles(modules: Mapping[str, Module]) -> list[list[str]]:
    """The cycles of modules, lazy imports counted."""
    return cycles({name: imported(module, modules) for name, module in modules.items()})


def room_arrows(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Room -> the other rooms that it imports from."""
    found: dict[str, set[str]] = {}
    for module in modules.values():
        others = {modules[name].room for name in imported(module, modules)}
        found.setdefault(module.room, set()).update(others - {module.room})
    return found


def test_no_imports_form_a_cycle() -> None:
    modules = read(ROOT)
    assert import_cycles(modules) == []
    assert cycles(room_arrows(modules)) == []


def modules_of(**texts: str) -> dict[str, Module]:
    """Modules of a package ``p``, by name."""
    return {
        f"p.{name}": Module(Path("p", f"{name}.py"), f"p.{name}", ast.parse(text))
        for name, text in texts.items()
    }


def test_imports_in_functions_and_for_types_count() -> None:
    modules = modules_of(
        a="from p.b import x\n",
        b="def f():\n    import p.c\n",
        c="if TYPE_CHECKING:\n    from p import a\n",
        d="from p import a, b\n",
    )
    assert import_cycles(modules) == [["p.a", "p.b", "p.c"]]


def test_relative_imports_count() -> None:
    assert import_cycles(modules_of(a="from .b import x", b="from . import a")) == [["p.a", "p.b"]]
