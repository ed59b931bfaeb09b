"""The programs inside the two sandboxes: one runs the tested code, the other one the tests.

The module is loaded before any untrusted code, and imports only Python's own library and its
neighbours ``plain`` and ``needed_names``. The two processes share one socket and nothing else,
over which they send lines of JSON: calls in one direction, plain data in the other. So whatever
the tested code does to its own process, the comparison happens where it cannot reach, with values
that are numbers, texts and containers of these, and with the ``==`` of these.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import json
import operator
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from rlax_code.needed_names import free_names, given, modules_among, unbound_names
from rlax_code.plain import decode, encode

CHANNEL = 3
RIGHT, WRONG, BROKEN = 0, 1, 3
"""Exit codes of the testing process: a test passes, fails, or cannot be used."""

_TESTS, _FILE = "tests", "test.py"  # names of the module and the file of the tests
# Modules of the types that the code's answers and their methods have.
_PLAIN = ("builtins", "collections", "datetime", "decimal", "fractions")
_LONGEST = 1 << 20  # bytes of a line
_ONE_BY_ONE = 16  # items of an iterator: a test may read no more of them
_MOST_ITEMS = 256  # so many of the further ones are sent together at most
# Within map, filter, zip or next of a test the first two would only end the loop; the third one
# needs more than a text.
_NOT_RAISED = (StopIteration, StopAsyncIteration, ExceptionGroup)
_CHECK = "check"  # the function of a test that gets the tested function
_NOT_PLAIN = "a test can give the code plain data only, not {}"


class _Unusable(TypeError):
    """The test cannot be used, for example because it passes data that is not plain to the code."""


class _Lines:
    """The socket between the two processes."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=CHANNEL)
        self._rest = b""

    def send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        if len(data) > _LONGEST:
            raise ValueError("a value is too large")
        self._socket.sendall(data)

    def receive(self) -> dict[str, Any]:
        """Receives one message.

        Raises:
          EOFError: the other side has ended.
          ValueError: the message is too long, or not JSON.
        """
        while b"\n" not in self._rest:
            if len(self._rest) > _LONGEST:
                raise ValueError("a value is too large")
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError("the code has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("no answer")
        return found


# ---- Where the code is ----


def serve(setup: str, code: str) -> None:
    """Runs the code, and then executes the calls of the tests until they end."""
    lines, held = _Lines(), list[Any]()
    # Data classes and others look for their module.
    sys.modules["solution"] = solution = ModuleType("solution")
    namespace = solution.__dict__
    namespace["__builtins__"] = builtins

    def keep(value: Any) -> Any:
        held.append(value)
        return ["o", len(held) - 1]

    def kept(place: int | str) -> Any:
        if isinstance(place, str):
            return namespace[place] if place in namespace else vars(builtins)[place]
        return held[place]

    exec(compile(setup, "setup.py", "exec", dont_inherit=True), namespace)
    exec(compile(code, "solution.py", "exec", dont_inherit=True), namespace)
    while True:
        try:
            asked = lines.receive()
        except EOFError:
            os._exit(0)
        try:
            found = namespace[asked["name"]] if "name" in asked else _done(asked, kept)
            answer = {"value": encode(found, keep)}
        except BaseException as error:  # noqa: BLE001  the tests may expect it
            answer = {"error": _kind(error), "said": _said(error)}
        lines.send(answer)


def _done(asked: dict[str, Any], kept: Callable[[Any], Any]) -> Any:
    target, what = kept(asked["of"]), asked["do"]
    arguments = [decode(one, kept) for one in asked["arguments"]]
    named = {name: decode(one, kept) for name, one in asked["named"].items()}
    if what == "call":
        return target(*arguments, **named)
    if what == "attribute":
        return getattr(target, *arguments)
    if what == "length":
        return len(target)
    if what == "item":
        return target[arguments[0]]
    if what == "text":
        return str(target)
    if what == "set attribute":
        return setattr(target, *arguments)
    if what == "set item":
        return operator.setitem(target, *arguments)
    if what == "iterator":
        return iter(target)
    return list(itertools.islice(_left_of(target), *arguments))


def _left_of(iterator: Any) -> Iterator[Any]:
    """Yields the remaining items of an iterator; of anything else it raises a TypeError."""
    while True:
        try:
            one = next(iterator)
        except StopIteration:
            return
        yield one


def _kind(error: BaseException) -> str:
    """Returns an exception's class name; for classes of the code, that of their Python base."""
    for kind in type(error).__mro__:
        if getattr(builtins, kind.__name__, None) is kind and issubclass(kind, Exception):
            return kind.__name__ if kind is not Exception else type(error).__name__
    return type(error).__name__


def _said(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:  # noqa: BLE001  its class is the code's
        return ""


# ---- Where the tests are ----


class _Code:
    """The tested code as the tests reach it.

    Attributes:
      given: functions that the tests share with the code, which knows them by name, as it knows
        Python's builtins.
      has_answered: True if the tests have seen more of the code than functions, classes and other
        objects under names of their own. From then on the code may be the cause of what they do.
    """

    def __init__(self, lines: _Lines):
        self._lines = lines
        self.given: dict[str, FunctionType] = {}
        self.has_answered = False

    def ask(self, message: Mapping[str, Any]) -> Any:
        self._lines.send(message)
        found = self._lines.receive()
        self.has_answered |= "name" not in message
        if "error" not in found:
            answer = decode(found["value"], lambda number: _Remote(self, int(number)))
            self.has_answered |= not isinstance(answer, _Remote)
            return answer
        kind = getattr(builtins, str(found["error"]), None)
        said = str(found.get("said", ""))
        if (
            isinstance(kind, type)
            and issubclass(kind, Exception)
            and not issubclass(kind, _NOT_RAISED)
        ):
            raise (UnicodeError if issubclass(kind, UnicodeError) else kind)(said)
        raise RuntimeError(f"{found['error']}: {said}")

    def place_of(self, value: Any) -> Any:
        if isinstance(value, _Remote):
            return ["o", value._number]
        for name, function in self.given.items():
            if value is function:
                return ["o", name]
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and getattr(builtins, name, None) is value:
            return ["o", name]
        said = _NOT_PLAIN.format(type(value).__name__)
        # Such as a method of a list that the code has returned in place of an object of its own.
        raise (TypeError if self.has_answered and not _is_of_tests(value) else _Unusable)(said)


class _Remote:
    """A proxy of an object in the code's process: a function, a class, or any object it made."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, code: _Code, number: int):
        vars(self).update(_code=code, _number=number)

    def _ask(self, what: str, *arguments: Any, **named: Any) -> Any:
        place_of = self._code.place_of
        message = {
            "of": self._number,
            "do": what,
            "arguments": [encode(one, place_of) for one in arguments],
            "named": {name: encode(one, place_of) for name, one in named.items()},
        }
        return self._code.ask(message)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ask("call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set attribute", name, value)

    def __iter__(self) -> Any:
        found = self._ask("iterator")
        return found._items() if isinstance(found, _Remote) else iter(found)

    def _items(self) -> Iterator[Any]:
        for number in itertools.count():
            asked = min(_MOST_ITEMS, max(1, number + 1 - _ONE_BY_ONE))
            some = self._some(asked)
            yield from some
            if len(some) < asked:
                return

    def __next__(self) -> Any:
        for one in self._some(1):
            return one
        raise StopIteration

    def _some(self, most: int) -> list[Any]:
        found = self._ask("some", most)
        if not isinstance(found, list) or len(found) > most:
            raise TypeError("these are no items")
        return found

    def __len__(self) -> int:
        return self._ask("length")

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("set item", key, value)

    def __contains__(self, item: Any) -> bool:
        return any(item == one for one in self)  # compared here: the code gives no verdict

    def __str__(self) -> str:
        return str(self._ask("text"))

    def __eq__(self, other: object) -> bool:
        raise TypeError("the code returned an object that is not plain data: it equals nothing")

    def __bool__(self) -> bool:
        raise TypeError("the code returned an object that is not plain data: it is not a bool")


_ITERATORS = (
    enumerate | filter | map | zip | reversed | type(iter([])) | type(iter(())) | type(iter(""))
    | type(reversed([]))
)  # fmt: skip


def _is_of_tests(value: Any) -> bool:
    """True for what no code returns: functions, modules, generators of a test, other instances."""
    return (
        isinstance(value, FunctionType | ModuleType | _ITERATORS)
        or isinstance(getattr(value, "__self__", None), ModuleType)  # such as math.sqrt
        or getattr(value, "__module__", None) == _TESTS
        or getattr(getattr(value, "gi_code", None), "co_filename", None) == _FILE
        or type(value).__module__ not in _PLAIN  # such as an array, which the code cannot send
    )


def judge(setup: str, prefix: str, entry: str, test: str) -> None:
    """Runs one test, and ends with ``RIGHT``, ``WRONG`` or ``BROKEN``.

    Args:
      setup: Python that runs before the test.
      prefix: code that the completion continues; its definitions are available to the tests.
      entry: name of the function of the code that ``check`` of the test is called with. The code
        then supplies no other name, except those that the prefix leaves to it. If empty, there is
        no ``check``, and the code supplies every name that nothing else defines.
      test: the test.
    """
    try:
        shared, left = given(prefix, entry)
        texts = (setup, shared, test)
        programs = [compile(ast.parse(text), _FILE, "exec", dont_inherit=True) for text in texts]
        namespace: dict[str, Any] = {"__name__": _TESTS, "__builtins__": builtins}
        exec(programs[0], namespace)
        exec(programs[1], namespace)
        names = free_names(texts) - namespace.keys()
        for name in modules_among(names - left, texts):
            namespace[name] = importlib.import_module(name)
        names -= namespace.keys()
        withheld = names - left if entry else set[str]()
        _check_test(test, entry, withheld, left)
    except BaseException:  # noqa: BLE001  the author of the tests is told
        _end(BROKEN)
    # From here on the code has a part in what happens. If it could make a test look unusable, its
    # sample would be unscored, which is better than a failed test.
    try:
        code = _Code(_Lines())
        code.given = {name: one for name, one in namespace.items() if isinstance(one, FunctionType)}
        for name in sorted(names - withheld):
            try:
                namespace[name] = code.ask({"name": name})
            except KeyError:
                continue  # the test says so itself, if it comes to that
        exec(programs[2], namespace)
        if entry:
            candidate = code.ask({"name": entry})
            namespace.get(_CHECK, _no_check)(candidate)
    except _Unusable:
        _end(BROKEN)
    except BaseException:  # noqa: BLE001  a test that does not hold raises something
        _end(WRONG)
    _end(RIGHT)


def _check_test(test: str, entry: str, withheld: set[str], left: set[str]) -> None:
    """Checks the names and the imports of a test, whatever the code returns.

    Args:
      withheld: names that nothing defines.
      left: names that the prefix leaves to the code, for the message.

    Raises:
      ImportError: it imports what is not there, and neither in a branch nor in another function
        than ``check``.
      _Unusable: it uses a name that is withheld.
    """
    imported: dict[str, Any] = {"__name__": _TESTS}
    statements = ast.parse(test).body
    if entry:  # then the function check is called, too
        checks = [s for s in statements if isinstance(s, ast.FunctionDef) and s.name == _CHECK]
        statements = [*statements, *(inner for check in checks for inner in check.body)]
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([statement], []), _FILE, "exec", dont_inherit=True), imported)
    for name in sorted(unbound_names([test]) & withheld - imported.keys()):  # after "import *"
        raise _Unusable(
            f"the test uses {name}, which neither the test nor the columns of setup and prefix "
            f"define, and the code supplies only {', '.join(sorted(left))}"
        )


def _no_check(candidate: Any) -> NoReturn:
    raise _Unusable("the test defines no function check")


def _end(code: int) -> NoReturn:
    if isinstance(error := sys.exception(), _Unusable):
        print(error, file=sys.stderr)
    elif code != RIGHT:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)
