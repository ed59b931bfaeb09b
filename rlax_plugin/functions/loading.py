"""Executes the file of a function, and finds the function in it.

Standard library only, see ``signatures``.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rlax_plugin.errors import alternatives
from rlax_plugin.functions.signatures import FunctionError
from rlax_plugin.text.harmless import one_line

_PREFIX = "rlax_function_file_"
_modules: dict[str, ModuleType] = {}


def own_line(error: BaseException) -> tuple[str, int, str] | None:
    """Returns file, line and function of the innermost frame in a file of functions, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename in _modules:
            return os.path.basename(frame.filename), frame.lineno or 0, frame.name
    return None


def function_of(path: str, module: str, name: str) -> Any:
    """Returns a function of a file, or of a module; executes it the first time.

    Args:
      path: the file; empty: a function of ``module``.

    Raises:
      FunctionError: the file cannot be executed, or has no such name.
    """
    found = _of_file(path) if path else _of_module(module)
    place = os.path.basename(path) if path else module
    try:
        return getattr(found, name)
    except AttributeError:
        known = [n for n, one in vars(found).items() if _own(one, found) and n[0] != "_"]
        reason = f"has no function {name!r}; {alternatives(name, known)}"
        raise FunctionError(f"{place} {reason}") from None


def _own(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__


def _of_file(path: str) -> ModuleType:
    if (known := _modules.get(path)) is not None:
        return known
    place = os.path.basename(path)
    code = _compiled(path, place)
    module = ModuleType(f"{_PREFIX}{len(_modules)}_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = _modules[path] = module  # dataclasses look there
    try:
        exec(code, module.__dict__)
    except BaseException as error:  # noqa: BLE001  whatever it raises is told in one line
        found = own_line(error)
        del sys.modules[module.__name__], _modules[path]
        line = f", line {found[1]}" if found else ""
        lacks = isinstance(error, ModuleNotFoundError)
        hint = ": install it, or add its directory to PYTHONPATH" if lacks else ""
        raise FunctionError(f"{place}{line}: {_told(error)}{hint}") from None
    return module


def _of_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001  as above
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.split(".")[0]):
            hint = ": install it, add its directory to PYTHONPATH, or name a file, FILE.py:NAME"
        raise FunctionError(f"module {name}: {_told(error)}{hint}") from None


def _told(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return (
            f"it calls sys.exit({error.code!r}) when it is imported: put code that runs as a "
            'program below if __name__ == "__main__"'
        )
    try:
        return f"it raises {one_line(f'{type(error).__name__}: {error}', 300)} when it is imported"
    except Exception:  # noqa: BLE001  a ``__str__`` of the user's may raise anything
        return f"it raises {type(error).__name__} when it is imported"


def _compiled(path: str, place: str) -> Any:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise FunctionError(f"{path} cannot be read: {error.strerror}") from None
    try:
        tree = ast.parse(source, path)
        check_imports(tree, path, place)
        return compile(tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise FunctionError(f"{place}{line}: it is not Python: {one_line(error.msg)}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = one_line(str(error)) or type(error).__name__
        raise FunctionError(f"{place}: it cannot be compiled: {reason}") from None


def check_imports(tree: ast.Module, path: str, place: str) -> None:
    """Rejects imports of files beside it: a run keeps a copy of the one file only.

    Raises:
      FunctionError: it imports such a file.
    """
    folder = Path(path).parent
    for line, name in _imported(tree):
        if not name:
            reason = "imports relative to a package, but a file of functions is none"
        elif name in sys.stdlib_module_names or not _lies_in(folder, name):
            continue
        else:
            reason = f"imports {name!r}, a file beside it, of which a run would keep no copy"
        mend = "put what it needs into the one file, or into an installed package"
        raise FunctionError(f"{place}, line {line}: it {reason}: {mend}")


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields (line, top-level package) of every import; the package is empty if it is relative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "" if node.level else (node.module or "").partition(".")[0]


def _lies_in(folder: Path, name: str) -> bool:
    beside = (folder / f"{name}.py", folder / name / "__init__.py")
    if not any(one.is_file() for one in beside):
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    origin = None if spec is None else spec.origin
    return origin is None or any(os.path.realpath(origin) == os.path.realpath(b) for b in beside)
