"""Finds which names of the tests Python, the tests, their context or the tested code must define.

It runs inside the sandbox of the tests, so it imports only Python's own library.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterable

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_IMPORTS = (ast.Import, ast.ImportFrom)
_GIVEN = (*_DEFINITIONS, *_ASSIGNMENTS, *_IMPORTS)


def free_names(texts: Iterable[str]) -> set[str]:
    """Returns global names that some text uses and that neither a text nor Python defines.

    Raises:
      SyntaxError: a text is not valid Python.
    """
    return unbound_names(texts) - set(dir(builtins))


def unbound_names(texts: Iterable[str]) -> set[str]:
    """Returns global names that some text uses and that no text defines.

    Raises:
      SyntaxError: a text is not valid Python.
    """
    used, own = set[str](), set[str]()
    for text in texts:
        tables = [symtable.symtable(text, "tests", "exec")]
        while tables:
            table = tables.pop()
            tables += table.get_children()
            for symbol in table.get_symbols():
                if table.get_type() != "module" and not symbol.is_global():
                    continue
                bound = symbol.is_assigned() or symbol.is_imported()
                (own if bound else used).add(symbol.get_name())
    return used - own


def modules_among(names: Iterable[str], texts: Iterable[str]) -> set[str]:
    """Returns names of standard modules that the texts use only with attributes, as modules are."""
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    of_attributes = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    otherwise = {
        node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in of_attributes
    }
    return (set(names) & sys.stdlib_module_names) - otherwise


def given(prefix: str, entry: str) -> tuple[str, set[str]]:
    """Separates the definitions of a prefix that the tests get from the names left to the code.

    The tests get its imports, its functions and its variables. The code keeps classes, because the
    tests may pass their objects to it, and if there is a class also the functions, which may work
    on its objects; the function that the completion continues; functions without a body; the tested
    one; and everything that needs one of these to be defined.

    Args:
      prefix: the beginning of a program, which may end within a statement.
      entry: name of the tested function, or "".
    """
    statements = _complete(prefix)
    left = {entry} if entry else set[str]()
    given_kinds = _GIVEN
    if any(isinstance(one, ast.ClassDef) for one in statements):
        given_kinds = (*_ASSIGNMENTS, *_IMPORTS)
    for place, statement in enumerate(statements):
        last = place == len(statements) - 1 and not _ends(statement, prefix)
        if last or _is_stub(statement) or not isinstance(statement, given_kinds):
            left |= bound(statement)
    while more := [one for one in statements if not bound(one) <= left and _needs(one, left)]:
        for one in more:
            left |= bound(one)
    kept = [
        one
        for one in statements
        if isinstance(one, given_kinds) and not bound(one) & left and not _needs(one, left)
    ]
    return ast.unparse(ast.Module(kept, [])), left


def _complete(prefix: str) -> list[ast.stmt]:
    """Returns the statements of the longest beginning of a prefix that is valid Python."""
    lines = prefix.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.strip() and not line[0].isspace()]
    for cut in (len(lines), *reversed(starts)):
        try:
            return ast.parse("".join(lines[:cut])).body
        except SyntaxError:
            continue
    return []


def _ends(statement: ast.stmt, prefix: str) -> bool:
    """Returns True if no completion can continue this last statement."""
    rest = prefix.splitlines()[(statement.end_lineno or 1) :]
    if any(line.strip() and not line[0].isspace() for line in rest):
        return True  # another statement begins, which was not complete
    if isinstance(statement, _DEFINITIONS):
        return isinstance(statement.body[-1], ast.Return | ast.Raise) and prefix.endswith("\n")
    return prefix.endswith("\n")


def _is_stub(statement: ast.stmt) -> bool:
    if not isinstance(statement, _DEFINITIONS):
        return False
    return all(
        isinstance(one, ast.Pass)
        or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        or (isinstance(one, ast.Raise) and "NotImplemented" in ast.unparse(one))
        for one in statement.body
    )


def bound(statement: ast.stmt) -> set[str]:
    """Returns the global names that a statement may define."""
    table = symtable.symtable(ast.unparse(statement), "statement", "exec")
    symbols = table.get_symbols()
    return {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}


def _needs(statement: ast.stmt, left: set[str]) -> bool:
    """Returns True if it needs a name left to the code when it runs, not only in a function."""
    if not isinstance(statement, _DEFINITIONS):
        return bool(_used(statement) & left)
    parts = (*statement.decorator_list, statement.args, statement.returns)
    return any(_used(part) & left for part in parts if part is not None)


def _used(part: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
