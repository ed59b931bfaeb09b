"""Source of the functions of a notebook or script, with everything that they use."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import symtable
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

from rlax_plugin.scripting.literals import described, literal

_Def = ast.FunctionDef | ast.AsyncFunctionDef
_ANNOTATIONS = 0x1000000  # the flag of ``from __future__ import annotations``
_FUTURE = "from __future__ import annotations\n"
_READ_NAMES = frozenset(("eval", "exec", "globals", "locals", "vars"))
_HEADER = '"""Rewards that were given to rlax_plugin.train as functions."""\n'


class NoSourceError(Exception):
    """A function that cannot be written as source; the message is the rest of a sentence on it."""


def plain_function(given: Any) -> FunctionType:
    """Returns a function that a module's name means, and not one that is made while it runs.

    Raises:
      NoSourceError: it is something else.
    """
    if not isinstance(given, FunctionType):
        kinds = {
            types.MethodType: "is a method",
            types.BuiltinFunctionType: "is a function without Python source",
            type: "is a class",
        }
        kind = next((text for one, text in kinds.items() if isinstance(given, one)), None)
        raise NoSourceError(f"{kind or f'is {described(given)}'}: write a function that calls it")
    if given.__name__ == "<lambda>":
        raise NoSourceError("is a lambda, which has no name: write it as a function with def")
    if "<locals>" in given.__qualname__ or given.__closure__:
        outer = given.__qualname__.partition(".<locals>")[0]
        reason = f"is defined inside {outer}: define it at the top level of its cell or file"
        raise NoSourceError(reason)
    if "." in given.__qualname__:
        reason = f"belongs to the class {given.__qualname__.rpartition('.')[0]}"
        raise NoSourceError(f"{reason}: define it at the top level of its cell or file")
    return given


def check_code(function: FunctionType, *sources: str) -> None:
    """Checks that a source defines exactly this function, as it is now.

    Args:
      sources: the source in each form in which it may have been compiled: in a cell of a notebook
        each statement is compiled alone, and a file as a whole, which gives other instructions for
        names that it imports.

    Raises:
      NoSourceError: no source has the function, but perhaps another one of the name.
    """
    flags = function.__code__.co_flags & _ANNOTATIONS | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for source in sources:
        whole = compile(source, "<source>", "exec", flags=flags, dont_inherit=True)
        found = [one for one in whole.co_consts if isinstance(one, CodeType)]
        if any(_plain(one) == _plain(function.__code__) for one in found):
            return
    reason = "is not what its source says now: run the cell, or import the file, again"
    raise NoSourceError(reason)


def _plain(code: CodeType) -> CodeType:
    """Returns a code object without its place in a file."""
    inside = tuple(_plain(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    flags = code.co_flags & ~_ANNOTATIONS
    return code.replace(
        co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=inside, co_flags=flags
    )


class Gatherer:
    """Collects functions of one namespace, and what they use of it, as source of a module.

    Constants are written as they are now, modules and what comes from them become imports, and
    functions that are called are collected in turn.
    """

    def __init__(self) -> None:
        self._imports: dict[str, None] = {}
        self._parts: list[str] = []
        self._done: dict[str, Any] = {}  # names, with their values
        self._namespace: dict[str, Any] | None = None
        self._annotations = 0

    def text(self) -> str:
        """Returns the module's source, in which each name is defined before it is used."""
        future = f"{_FUTURE}\n" if self._annotations else ""
        imports = "\n".join([*sorted(self._imports), ""]) if self._imports else ""
        return "\n".join([_HEADER, f"{future}{imports}", *self._parts]).rstrip("\n") + "\n"

    def add(self, function: FunctionType) -> None:
        """Collects a function.

        Raises:
          NoSourceError: it, or something that it uses, cannot be written as source.
        """
        name = plain_function(function).__name__
        if self._namespace is None:
            self._namespace = function.__globals__
            self._annotations = function.__code__.co_flags & _ANNOTATIONS
        if function.__globals__ is not self._namespace:
            raise NoSourceError("is of another namespace than the functions before it")
        if self._namespace.get(name) is not function:
            raise NoSourceError(f"is not what the name {name} means now: give {name} itself")
        if name in self._done:
            return
        self._done[name] = function
        source, node = _source(function)
        if function.__code__.co_flags & _ANNOTATIONS != self._annotations:
            raise NoSourceError("has other __future__ imports than the functions before it")
        chains = _chains(node)
        future = _FUTURE * bool(self._annotations)  # the names in annotations are not used then
        for used in _used(f"{future}{source}", name):
            self._use(used, chains.get(used, ()))
        _check_defaults(function, node, self._namespace)
        self._parts.append(f"\n{source}")

    def _use(self, name: str, chains: typing.Iterable[tuple[str, ...]]) -> None:
        namespace = self._namespace or {}
        if name.startswith("__") and name.endswith("__") and not hasattr(builtins, name):
            raise NoSourceError(f"uses {name}, which is another one in the written file")
        if name not in namespace:
            if name in _READ_NAMES:
                reason = f"calls {name}, so that the names that it uses cannot be told"
                raise NoSourceError(f"{reason}: name them")
            if not hasattr(builtins, name):
                raise NoSourceError(f"uses the name {name}, which is not defined")
            return
        value = namespace[name]
        if name in self._done:
            return
        if isinstance(value, ModuleType):
            self._use_module(name, value, chains)
        elif isinstance(value, FunctionType) and value.__globals__ is namespace:
            self._use_function(name, value)
        elif (statement := _import(name, value)) is not None:
            self._imports[statement] = None
        else:
            self._parts.append(f"{name} = {self._constant(name, value)}\n")
        self._done[name] = value

    def _use_module(
        self, name: str, module: ModuleType, chains: typing.Iterable[tuple[str, ...]]
    ) -> None:
        full = module.__name__
        if not _importable(full) or sys.modules[full] is not module:
            raise NoSourceError(f"uses the module {name}, which no import statement finds")
        self._imports[f"import {full}" if full == name else f"import {full} as {name}"] = None
        for chain in chains:  # such as scipy.stats, which an import of scipy alone may not load
            for end in range(1, len(chain) + 1):
                inner = ".".join((full, *chain[:end]))
                if isinstance(sys.modules.get(inner), ModuleType):
                    self._imports[f"import {inner}"] = None

    def _use_function(self, name: str, function: FunctionType) -> None:
        try:
            self.add(function)
        except NoSourceError as error:
            raise NoSourceError(f"calls {name}, which {error}") from None
        if name != function.__name__:
            self._parts.append(f"{name} = {function.__name__}\n")

    def _constant(self, name: str, value: Any) -> str:
        if type(value) is re.Pattern:
            namespace = self._namespace or {}
            if namespace.get("re", re) is re:
                self._imports["import re"] = None
                return f"re.compile({value.pattern!r}, {value.flags})"
        try:
            return literal(value)
        except ValueError as error:
            reason = f"uses {name}, which is or contains {error}"
            advice = "make it inside the function, or move all of it to a .py file"
            raise NoSourceError(f"{reason} and cannot be written as source: {advice}") from None


def _source(function: FunctionType) -> tuple[str, _Def]:
    if hasattr(function, "__wrapped__") or vars(function):
        reason = "is decorated, or has attributes: give a plain function, or move it to a .py file"
        raise NoSourceError(reason)
    try:
        lines, _ = inspect.findsource(function)
    except (OSError, TypeError):
        reason = "has a source that cannot be read: define it in a notebook's cell or in a file"
        raise NoSourceError(reason) from None
    whole = "".join(lines)
    try:
        nodes = [one for one in ast.walk(ast.parse(whole)) if _begins(one, function)]
    except (SyntaxError, ValueError):  # a script that was edited after it had started
        nodes = []
    if not nodes:
        raise NoSourceError("is not what its source says now: run the cell or script again")
    node = nodes[0]
    if node.decorator_list:
        raise NoSourceError("is decorated: give a plain function, or move it to a .py file")
    if node.type_params:
        raise NoSourceError("has type parameters: give a plain function")
    source = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
    if not source.startswith(("def ", "async ")):
        raise NoSourceError("shares its line with other code: give it a line of its own")
    check_code(function, source, whole)
    return f"{source.rstrip()}\n", node


def _begins(node: ast.AST, function: FunctionType) -> TypeGuard[_Def]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return node.name == function.__name__ and first == function.__code__.co_firstlineno


def _used(source: str, name: str) -> list[str]:
    """Returns the global names that a function uses, sorted.

    Raises:
      NoSourceError: it assigns to one.
    """
    found: set[str] = set()
    whole = symtable.symtable(source, "<source>", "exec")
    tables = [*whole.get_children()]
    found |= {one.get_name() for one in whole.get_symbols() if one.is_referenced()}
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_global():
                if symbol.is_assigned() and symbol.is_declared_global():
                    reason = f"assigns to the global name {symbol.get_name()}"
                    raise NoSourceError(f"{reason}, which every reward process has for itself")
                found.add(symbol.get_name())
    return sorted(found - {name})


def _chains(node: ast.AST) -> dict[str, set[tuple[str, ...]]]:
    """Returns name -> the attributes that are read after it, such as (stats, norm) of scipy."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for one in ast.walk(node):
        chain: list[str] = []
        while isinstance(one, ast.Attribute):
            chain.insert(0, one.attr)
            one = one.value
        if isinstance(one, ast.Name) and chain:
            found.setdefault(one.id, set()).add(tuple(chain))
    return found


def _check_defaults(function: FunctionType, node: _Def, names: dict[str, Any]) -> None:
    arguments = node.args
    values = dict(_defaults(function))
    positional = [*arguments.posonlyargs, *arguments.args]
    given: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, expression in given:
        if expression is None:
            continue
        value = values.get(argument.arg, expression)
        if isinstance(expression, ast.Name) and names.get(expression.id, given) is value:
            continue
        try:
            same = literal(ast.literal_eval(expression)) == literal(value)
        except (ValueError, TypeError):
            same = False
        if not same:
            reason = f"has a computed default of {argument.arg}: write its value"
            raise NoSourceError(reason)


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield name, parameter.default


def _import(name: str, value: Any) -> str | None:
    """Returns the statement that imports a value under a name; None if no module has it."""
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if callable(value) and isinstance(module, str) and isinstance(own, str):
        there = getattr(sys.modules[module], own, None) if _importable(module) else None
        if there is value:
            return f"from {module} import {own}" + (f" as {name}" if own != name else "")
    for own, one in vars(typing).items():  # Optional, Union and others have no such attributes
        if one is value and own in typing.__all__:
            return f"from typing import {own}" + (f" as {name}" if own != name else "")
    return None


def _importable(module: str) -> bool:
    found = sys.modules.get(module)
    return module != "__main__" and getattr(found, "__spec__", None) is not None
