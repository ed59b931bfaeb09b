"""Finds where tests execute text or data that may come from the tested code.

``eval`` of a result of the code would run the code's text in the process of the tests, which it
could end with the exit code of a test that passes.
"""

from __future__ import annotations

import ast
import functools
import symtable
from collections.abc import Iterator

from rlax_code.needed_names import unbound_names

_FUNCTIONS = {"eval", "exec", "compile", "__import__", "__builtins__"}
_MODULES = {"builtins", "pickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
_NAMES = _FUNCTIONS | _MODULES | {"getattr"}


@functools.lru_cache(64)  # each completion of a group has the same tests
def executing(texts: tuple[str, ...]) -> tuple[int, int, str] | None:
    """Returns the first place at which programs may execute what the tested code returned.

    It is a use of such a function of Python, or a module of such functions. A call with constants
    only, such as ``eval("1 + 2")``, is none, unless the constant has one, and neither are methods
    such as ``model.eval()`` and names that the texts define themselves.

    Args:
      texts: programs that share their global names; one that is not valid Python is ignored.

    Returns:
      Position of the text, line, and name of what executes; None if there is no such place.
    """
    if not any(name in text for name in _NAMES for text in texts):
        return None  # as most tests, which need not be read
    trees = {place: tree for place, text in enumerate(texts) if (tree := _parsed(text)) is not None}
    names = unbound_names(texts[place] for place in trees) & (_FUNCTIONS | _MODULES)
    for place, tree in trees.items():
        for line, name in _places(tree, names):
            return place, line, name
    return None


def _parsed(text: str) -> ast.Module | None:
    try:
        symtable.symtable(text, "tests", "exec")
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the judge says so


def _places(tree: ast.Module, names: set[str]) -> Iterator[tuple[int, str]]:
    """Yields line and name of what executes."""
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):  # a call comes before what it calls
        match node:
            case ast.Name(id=name) if name in names and node not in harmless:
                yield node.lineno, name
            case ast.Call(
                func=ast.Name(id="getattr"),
                args=[ast.Name(id="os" | "posix" | "subprocess" | "sys" as module), name, *_],
            ) if not isinstance(name, ast.Constant):
                yield node.lineno, f"getattr of {module}"
            case ast.Import():
                for one in node.names:
                    if one.name in _MODULES:
                        yield node.lineno, one.name
            case ast.ImportFrom(module=str(name)) if name in _MODULES:
                yield node.lineno, name
            case ast.Call(func=func, args=arguments, keywords=[]) if _are_harmless(arguments):
                harmless.add(func)


def _are_harmless(arguments: list[ast.expr]) -> bool:
    constants = [one.value for one in arguments if isinstance(one, ast.Constant)]
    # Of ``compile`` the first is the program.
    texts = tuple(one for one in constants[:1] if isinstance(one, str))
    return len(constants) == len(arguments) and executing(texts) is None
