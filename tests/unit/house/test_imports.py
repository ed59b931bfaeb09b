"""Who may import whom. import-linter proves the rest; it takes no single-file modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLUGINS = sorted(
    path
    for path in (ROOT / "plugins").iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
)
PUBLIC = {"api", "testing"}  # what is kept stable; a built-in gets no other door than a stranger
HEAVY = ("jax", "maxtext", "orbax", "tensorflow", "torch", "transformers")


def imports(plugin: Path) -> Iterator[tuple[str, str]]:
    """(file:line, dotted name) of every import, wherever in the code it stands."""
    for path in [plugin] if plugin.is_file() else sorted(plugin.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", name


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.stem)
def test_plugins_import_the_public_api_and_never_each_other(plugin: Path) -> None:
    others = {path.stem for path in PLUGINS} - {plugin.stem}
    for where, name in imports(plugin):
        package, _, rest = name.partition(".")
        assert package not in others, f"{where} imports another plug-in: {name}"
        assert package != "maxtext", f"{where} imports {name}: go through maxtext_overrides"
        if package == "rlax_plugin":
            part, _, inner = rest.partition(".")
            assert part in PUBLIC and inner.count(".") < 1, f"{where} imports {name}: not public"


def test_nothing_is_imported_with_the_stack_underneath() -> None:
    """Importing the framework is cheap; ``rlax check`` imports plug-ins, whose weight waits for
    ``build``."""
    framework = [
        "rlax_plugin.api",
        "rlax_plugin.cli",
        "rlax_plugin.build",
        "rlax_plugin.commands.explain",
        "rlax_plugin.config.loading",
        "rlax_plugin.weights",
        "rlax_plugin.worker.serve",
        "rlax_plugin.controller.run",
    ]
    modules = framework + [path.stem for path in PLUGINS]
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        f"    heavy = [m for m in {HEAVY} if m in sys.modules]\n"
        "    assert not heavy, f'importing {module} imports {heavy}'\n"
    )
    run(code)


def test_help_needs_neither_numpy_nor_pydantic() -> None:
    run(
        "import sys, rlax_plugin.cli\n"
        "assert not {'numpy', 'pydantic'} & set(sys.modules), 'rlax --help would be slow'"
    )


def run(code: str) -> None:
    """Runs code in a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
