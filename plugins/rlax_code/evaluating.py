"""Finds where tests execute text or data that may come from the tested code.

``eval`` of a result of the code would run the code's text in the process of the tests, which it
could end with the exit code of a test that passes.
"""

from __future__ import annotations

import ast
import builtins
import functools
import symtable
import sys
from collections.abc import Iterator

from rlax_code.needed_names import unbound_names

_OF_BUILTINS = ("eval", "exec", "compile", "__import__")
_PICKLES = ("pickle", "_pickle", "dill", "cloudpickle")
_EXECUTING = (
    {f"builtins.{name}" for name in _OF_BUILTINS}
    | {f"{module}.{name}" for module in _PICKLES for name in ("load", "loads", "Unpickler")}
    | {"marshal.load", "marshal.loads", "shelve.open", "shelve.Shelf"}
)
# Of their names, each of these is a part: most tests have none and need not be read.
_PARTS = ("eval", "exec", "compile", "__import__", "load", "Unpickler", "shelve", "getattr")
_POWERFUL = ("os", "posix", "sys", "builtins", "subprocess")  # modules with such a function


@functools.lru_cache(64)  # each completion of a group has the same tests
def executing(texts: tuple[str, ...]) -> tuple[int, int, str] | None:
    """Returns the first place at which programs may execute what the tested code returned.

    A call with constants only, such as ``eval("1 + 2")``, is none, unless the constant has one.
    Methods of other objects that are named alike, such as ``model.eval()``, and names that the
    texts define themselves do not count.

    Args:
      texts: programs that share their global names; one that is not valid Python is ignored.

    Returns:
      Position of the text, line, and name of what executes; None if there is no such place.
    """
    if not any(part in text for part in _PARTS for text in texts):
        return None
    trees = {place: tree for place, text in enumerate(texts) if (tree := _parsed(text)) is not None}
    unbound = unbound_names(texts[place] for place in trees)
    names = {name: f"builtins.{name}" for name in unbound & set(dir(builtins))}
    names |= {name: name for name in unbound & sys.stdlib_module_names}  # the judge imports them
    names["__builtins__"] = "builtins"
    for tree in trees.values():
        names |= _bound_names(tree, names)
    for place, tree in trees.items():
        for node, found in _places(tree, names):
            return place, node.lineno, found
    return None


def _parsed(text: str) -> ast.Module | None:
    try:
        symtable.symtable(text, "tests", "exec")
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the judge says so


def _bound_names(tree: ast.Module, names: dict[str, str]) -> dict[str, str]:
    """Returns the names by which a program calls modules and what it imports from them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for one in node.names:
                    whole = one.name if one.asname else one.name.partition(".")[0]
                    found[one.asname or whole] = whole
            case ast.ImportFrom(module=str(module)):
                for one in node.names:
                    found[one.asname or one.name] = f"{module}.{one.name}"
                if node.names[0].name == "*":
                    inside = (name for name in _EXECUTING if name.startswith(f"{module}."))
                    found |= {name.removeprefix(f"{module}."): name for name in inside}
            case ast.Assign(targets=[ast.Name(id=name)]):
                if module := _name_of(node.value, names | found):
                    found[name] = module
    return found


def _name_of(node: ast.AST, names: dict[str, str]) -> str | None:
    """Returns the name with its module, such as ``pickle.loads``; None for any other object."""
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=value, attr=attribute):
            of = _name_of(value, names)
        case ast.Subscript(value=ast.Name(id="__builtins__"), slice=ast.Constant(value=attribute)):
            of = "builtins"
        case ast.Call(args=[value, ast.Constant(value=attribute), *_]) if _is_getattr(node, names):
            of = _name_of(value, names)
        case _:
            return None
    return of and f"{of}.{attribute}"


def _is_getattr(call: ast.Call, names: dict[str, str]) -> bool:
    return isinstance(call.func, ast.Name) and names.get(call.func.id) == "builtins.getattr"


def _places(tree: ast.Module, names: dict[str, str]) -> Iterator[tuple[ast.expr, str]]:
    """Yields expressions that name what executes, and the name."""
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):  # a call comes before what it calls
        if isinstance(node, ast.expr) and node not in harmless and not _is_assigned(node):
            found = _name_of(node, names)
            if found in _EXECUTING:
                yield node, found.removeprefix("builtins.")
        match node:
            case ast.Call(func=func, args=arguments) if _name_of(func, names) in _EXECUTING:
                if _are_harmless(arguments) and not node.keywords:
                    harmless.add(func)
            case ast.Call(args=[module, attribute, *_]) if _is_getattr(node, names):
                named = _name_of(module, names)
                if named in _POWERFUL and not isinstance(attribute, ast.Constant):
                    yield node, f"getattr of {named}"


def _is_assigned(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def _are_harmless(arguments: list[ast.expr]) -> bool:
    constants = [one.value for one in arguments if isinstance(one, ast.Constant)]
    # Of ``compile`` the first is the program.
    texts = tuple(one for one in constants[:1] if isinstance(one, str))
    return len(constants) == len(arguments) and executing(texts) is None
