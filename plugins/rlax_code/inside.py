"""What runs inside the two sandboxes: one answers with the tested code, the other one tests.

It is loaded there as ``prelude``, before any untrusted code, and imports only Python's
own library. The two processes share one socket and nothing else. On it pass lines of JSON: calls
in one direction, plain data in the other. So whatever the tested code does to its own process,
the comparison happens where it cannot reach, with values that are numbers, texts and containers of
these, and with the ``==`` of these.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

CHANNEL = 3
RIGHT, WRONG, BROKEN = 0, 1, 3
"""Exit codes of the testing process: a test holds, does not, or is none."""

_LONGEST = 1 << 20  # bytes of a line
_MOST_ITEMS = 100_000
_DEEPEST = 50


class _Unsendable(TypeError):
    """A test gives the code something that is not plain data."""


def encode(value: Any, keep: Callable[[Any], Any], depth: int = 0) -> Any:
    """Plain data as JSON; subclasses lose what makes them special.

    Args:
      keep: what becomes of everything else.
    """
    if depth > _DEEPEST:
        raise ValueError(f"data is nested more than {_DEEPEST} deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return ["i", int.__format__(value, "x")]
    if isinstance(value, float):
        return ["f", float.hex(value)]
    if isinstance(value, complex):
        return ["c", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, str):
        return ["s", str.__str__(value)]
    if isinstance(value, bytes | bytearray):
        return ["b" if isinstance(value, bytes) else "a", bytes(value).hex()]
    for mark, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            return [mark, [encode(one, keep, depth + 1) for one in kind.__iter__(value)]]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["d", [[encode(one, keep, depth + 1) for one in pair] for pair in pairs]]
    return keep(value)


_CONTAINERS: dict[str, type] = {"l": list, "t": tuple, "u": set, "z": frozenset}


def decode(found: Any, kept: Callable[[int], Any], depth: int = 0) -> Any:
    """What ``encode`` made; the sender may have made anything.

    Raises:
      ValueError, TypeError, LookupError: it is nothing of that.
    """
    if depth > _DEEPEST + 1:
        raise ValueError("data is nested too deep")
    if found is None or found is True or found is False:
        return found
    mark, *rest = found
    if mark == "i":
        return int(rest[0], 16)
    if mark == "f":
        return float.fromhex(rest[0])
    if mark == "c":
        return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
    if mark == "s":
        return str(rest[0])
    if mark in ("a", "b"):
        return (bytes if mark == "b" else bytearray).fromhex(rest[0])
    if mark in _CONTAINERS:
        return _CONTAINERS[mark](decode(one, kept, depth + 1) for one in rest[0])
    if mark == "d":
        return {decode(k, kept, depth + 1): decode(v, kept, depth + 1) for k, v in rest[0]}
    if mark == "o":
        return kept(int(rest[0]))
    raise ValueError("unknown data")


class _Lines:
    """The socket between the two."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=CHANNEL)
        self._rest = b""

    def send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        if len(data) > _LONGEST:
            raise ValueError("a value is too large")
        self._socket.sendall(data)

    def receive(self) -> dict[str, Any]:
        """
        Raises:
          EOFError: the other side has ended.
          ValueError: it sends too much, or no JSON.
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
    """Runs the code, and then does what the tests ask of it, until they end."""
    lines, held = _Lines(), list[Any]()
    namespace: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins}

    def keep(value: Any) -> Any:
        held.append(value)
        return ["o", len(held) - 1]

    exec(compile(setup, "setup.py", "exec", dont_inherit=True), namespace)
    exec(compile(code, "solution.py", "exec", dont_inherit=True), namespace)
    while True:
        try:
            asked = lines.receive()
        except EOFError:
            os._exit(0)
        try:
            value = encode(_done(asked, namespace, held), keep)
            answer = {"value": value}
        except BaseException as error:  # noqa: BLE001  the tests may expect it
            answer = {"error": type(error).__name__, "said": _said(error)}
        lines.send(answer)


def _done(asked: dict[str, Any], namespace: dict[str, Any], held: list[Any]) -> Any:
    if "name" in asked:
        return namespace[asked["name"]]
    target, what = held[asked["of"]], asked["do"]
    arguments = [decode(one, held.__getitem__) for one in asked["arguments"]]
    named = {name: decode(one, held.__getitem__) for name, one in asked["named"].items()}
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
    return [one for one, _ in zip(target, range(_MOST_ITEMS), strict=False)]


def _said(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:  # noqa: BLE001  its class is the code's
        return ""


# ---- Where the tests are ----


class _Remote:
    """An object of the code's: a function, a class, or whatever it made."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, lines: _Lines, number: int):
        self._lines, self._number = lines, number

    def _ask(self, what: str, *arguments: Any, **named: Any) -> Any:
        message = {
            "of": self._number,
            "do": what,
            "arguments": [encode(one, _number_of) for one in arguments],
            "named": {name: encode(one, _number_of) for name, one in named.items()},
        }
        return _answer(self._lines, message)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ask("call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __iter__(self) -> Any:
        return iter(self._ask("items"))

    def __len__(self) -> int:
        return self._ask("length")

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __contains__(self, item: Any) -> bool:
        return item in self._ask("items")  # compared here: the code is not asked for a verdict

    def __str__(self) -> str:
        return str(self._ask("text"))

    def __eq__(self, other: object) -> bool:
        raise TypeError("the code returned an object that is not plain data: it equals nothing")

    def __bool__(self) -> bool:
        raise TypeError("the code returned an object that is not plain data: it is not a bool")


def _number_of(value: Any) -> Any:
    if isinstance(value, _Remote):
        return ["o", value._number]
    raise _Unsendable(f"a test can give the code plain data only, not {type(value).__name__}")


def _answer(lines: _Lines, message: Mapping[str, Any]) -> Any:
    lines.send(message)
    found = lines.receive()
    if "error" not in found:
        return decode(found["value"], lambda number: _Remote(lines, number))
    kind = getattr(builtins, str(found["error"]), None)
    said = str(found.get("said", ""))
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, UnicodeError)
    ):
        raise kind(said)
    raise RuntimeError(f"{found['error']}: {said}")


def judge(setup: str, test: str) -> None:
    """Runs one test, and ends with ``RIGHT``, ``WRONG`` or ``BROKEN``."""
    try:
        trees = [ast.parse(text, name) for text, name in ((setup, "setup"), (test, "test"))]
        programs = [compile(tree, "test.py", "exec", dont_inherit=True) for tree in trees]
        namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        exec(programs[0], namespace)
    except BaseException:  # noqa: BLE001  the author of the tests is told
        _end(BROKEN)
    try:
        lines = _Lines()
        for name in sorted(_free_names(trees) - namespace.keys()):
            try:
                namespace[name] = _answer(lines, {"name": name})
            except KeyError:
                continue  # the test says so itself, if it comes to that
        exec(programs[1], namespace)
    except _Unsendable:
        _end(BROKEN)
    except BaseException:  # noqa: BLE001  a test that does not hold raises something
        _end(WRONG)
    _end(RIGHT)


def _free_names(trees: list[ast.Module]) -> set[str]:
    """What tests use and neither Python nor they themselves have: the code cannot replace these."""
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    own = {name for tree in trees for statement in tree.body for name in _bound(statement)}
    return used - own - set(dir(builtins))


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(one.asname or one.name).split(".")[0] for one in statement.names}
    nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _end(code: int) -> None:
    if code != RIGHT:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)
