"""Source of the functions of a notebook or script, with everything that they use."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import symtable
import sys
import textwrap
import tokenize
from types import CodeType, FunctionType, ModuleType
from typing import Any

from rlax_plugin.tools.scripting.literals import described, literal

_ANNOTATIONS = 0x1000000  # the flag of ``from __future__ import annotations``
_FUTURE = "from __future__ import annotations\n"  # so that annotations use no names
_READ_NAMES = frozenset(("eval", "exec", "globals", "locals", "vars"))
_HEADER = f'"""Rewards that were given to rlax_plugin.train as functions."""\n\n{_FUTURE}'
_TOP = "define it at the top level of its cell or file"
_PLAIN = "give a plain function, or move it to a .py file"


class NoSourceError(Exception):
    """A function that cannot be written as source; the message is the rest of a sentence on it."""


def plain_function(given: Any) -> FunctionType:
    """Returns a function that a module's name means, and not one that is made while it runs.

    Raises:
      NoSourceError: it is something else.
    """
    if not isinstance(given, FunctionType):
        raise NoSourceError(f"is {described(given)}: write a function that calls it")
    if given.__name__ == "<lambda>":
        raise NoSourceError("is a lambda, which has no name: write it as a function with def")
    if hasattr(given, "__wrapped__"):
        raise NoSourceError(f"is decorated: {_PLAIN}")
    outer, dot, _ = given.__qualname__.removesuffix(given.__name__).partition(".")
    if dot or given.__closure__:
        raise NoSourceError(f"is defined inside {outer}: {_TOP}")
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
        codes = [constant for constant in whole.co_consts if isinstance(constant, CodeType)]
        if _without_place(function.__code__) in map(_without_place, codes):
            return
    raise NoSourceError(
        "is not what its source says now: run the cell or script, or import the file, again"
    )


def _without_place(code: CodeType) -> CodeType:
    inside = tuple(_without_place(c) if isinstance(c, CodeType) else c for c in code.co_consts)
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
        self._imports: set[str] = set()
        self._parts: list[str] = []
        self._done: set[str] = set()
        self._namespace: dict[str, Any] | None = None

    def text(self) -> str:
        """Returns the module's source, in which each name is defined before it is used."""
        imports = "".join(f"{statement}\n" for statement in sorted(self._imports))
        return "\n".join([_HEADER, imports, *self._parts]).rstrip("\n") + "\n"

    def add(self, function: FunctionType) -> None:
        """Collects a function.

        Raises:
          NoSourceError: it, or something that it uses, cannot be written as source.
        """
        name = plain_function(function).__name__
        if self._namespace is None:
            self._namespace = function.__globals__
        if function.__globals__ is not self._namespace:
            raise NoSourceError("is of another namespace than the functions before it")
        if self._namespace.get(name) is not function:
            raise NoSourceError(f"is not what the name {name} means now: give {name} itself")
        if name in self._done:
            return
        self._done.add(name)
        source = _source(function, self._namespace)
        for used in _used(f"{_FUTURE}{source}"):
            self._use(used, source)
        for used in sorted(_field_types(source) & self._namespace.keys()):
            self._use(used, source)
        self._parts.append(f"\n{source}")

    def _use(self, name: str, source: str) -> None:
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
        if isinstance(value, ModuleType):  # each time, as another function may use more of it
            self._use_module(name, value, source)
        elif name in self._done:
            return
        elif isinstance(value, FunctionType) and value.__globals__ is namespace:
            try:
                self.add(value)
            except NoSourceError as error:
                raise NoSourceError(f"calls {name}, which {error}") from None
            if name != value.__name__:
                self._parts.append(f"{name} = {value.__name__}\n")
        elif (statement := _import(name, value)) is not None:
            self._imports.add(statement)
        else:
            self._parts.append(f"{name} = {self._constant(name, value)}\n")
        self._done.add(name)

    def _use_module(self, name: str, module: ModuleType, source: str) -> None:
        full = module.__name__
        if not _importable(full) or sys.modules[full] is not module:
            raise NoSourceError(f"uses the module {name}, which no import statement finds")
        self._imports.add(f"import {full}" if full == name else f"import {full} as {name}")
        for inner in list(sys.modules):  # scipy.stats, which an import of scipy may not load
            own = f"{name}{inner.removeprefix(full)}"
            if inner.startswith(f"{full}.") and re.search(rf"\b{re.escape(own)}\b", source):
                self._imports.add(f"import {inner}")

    def _constant(self, name: str, value: Any) -> str:
        if type(value) is re.Pattern and (self._namespace or {}).get("re", re) is re:
            self._imports.add("import re")
            return f"re.compile({value.pattern!r}, {value.flags})"
        try:
            return literal(value)
        except ValueError as error:
            reason = f"uses {name}, which is or contains {error}"
            advice = "make it inside the function, or move all of it to a .py file"
            raise NoSourceError(f"{reason} and cannot be written as source: {advice}") from None


def _source(function: FunctionType, namespace: dict[str, Any]) -> str:
    if hasattr(function, "__wrapped__") or vars(function):
        raise NoSourceError(f"is decorated, or has attributes: {_PLAIN}")
    try:
        lines, first = inspect.findsource(function)
    except (OSError, TypeError):
        reason = "has a source that cannot be read: define it in a notebook's cell or in a file"
        raise NoSourceError(reason) from None
    whole = "".join(lines)
    try:
        source = textwrap.dedent("".join(inspect.getblock(lines[first:]))).rstrip() + "\n"
        (node,) = ast.parse(source).body
        ast.parse(whole)
    except (SyntaxError, ValueError, tokenize.TokenError):  # a script that was edited since
        node = source = None
    if source is not None and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if node.decorator_list:
            raise NoSourceError(f"is decorated: {_PLAIN}")
        if node.type_params:
            raise NoSourceError("has type parameters: give a plain function")
        check_code(function, source, whole)
        _check_defaults(function, node.args, namespace)
        return source
    raise NoSourceError("is not what its source says now: run the cell or script again")


def _check_defaults(
    function: FunctionType, arguments: ast.arguments, namespace: dict[str, Any]
) -> None:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    parameters = inspect.signature(function).parameters
    for argument, expression in pairs:
        if expression is None:
            continue
        value = parameters[argument.arg].default
        if isinstance(expression, ast.Name) and namespace.get(expression.id, pairs) is value:
            continue
        try:
            same = literal(ast.literal_eval(expression)) == literal(value)
        except (ValueError, TypeError):
            same = False
        if not same:
            raise NoSourceError(f"has a computed default of {argument.arg}: write its value")


def _used(source: str) -> list[str]:
    """Returns the global names that a function uses, sorted.

    Raises:
      NoSourceError: it assigns to one.
    """
    names: set[str] = set()
    module = symtable.symtable(source, "<source>", "exec")
    tables = [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_assigned() and symbol.is_declared_global():
                reason = f"assigns to the global name {symbol.get_name()}"
                raise NoSourceError(f"{reason}, which every reward process has for itself")
            if symbol.is_global() and (table is not module or symbol.is_referenced()):
                names.add(symbol.get_name())
    return sorted(names)


def _field_types(source: str) -> set[str]:
    """Returns the names in annotations of classes made in a function, which pydantic evaluates."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    fields = [node for one in classes for node in one.body if isinstance(node, ast.AnnAssign)]
    nodes = [node for field in fields for node in ast.walk(field.annotation)]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _import(name: str, value: Any) -> str | None:
    """Returns the statement that imports a value under a name; None if no module has it."""
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(own, str) and _importable(module)):
        return None
    if getattr(sys.modules[module], own, None) is not value:
        return None
    return f"from {module} import {own}" + (f" as {name}" if own != name else "")


def _importable(module: str) -> bool:
    return module != "__main__" and getattr(sys.modules.get(module), "__spec__", None) is not None
