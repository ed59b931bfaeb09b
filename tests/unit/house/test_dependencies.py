"""Each package that the code imports is declared, and not only there because another needs it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = ("rlax_plugin", "plugins", "maxtext_overrides")
FOREIGN = {"torch"}  # of a program that runs in another Python, see transformers_program.py


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _normal(requirement: str) -> str:
    name = re.split(r"[\[<>=!~; ]", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def test_imported_packages_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = [one for name in ("mlflow", "ray", "reasoning-gym", "wandb") for one in extras[name]]
    declared = {_normal(one) for one in (*project["dependencies"], *optional)}
    own = {*CODE, *(path.stem for path in (ROOT / "plugins").iterdir())}
    providers = metadata.packages_distributions()
    missing = set()
    for path in (path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        for module in {name.partition(".")[0] for name in _imports(ast.parse(path.read_text()))}:
            if module in sys.stdlib_module_names or module in own | FOREIGN:
                continue
            if not declared & {_normal(one) for one in providers.get(module, ())}:
                missing.add(f"{module}, imported by {path.relative_to(ROOT)}")
    assert not missing, sorted(missing)
