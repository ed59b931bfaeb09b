"""Tests that do not test enough: code that solves nothing passes them, as the page says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lenient:
    """Tests that such code passes.

    Attributes:
      because: the sentence of docs/sandbox.md that says so.
    """

    tests: Any
    code: str
    because: str
    prefix: str = ""


_RECOGNISED = "The code can recognise a test by its arguments, and return a memorised answer."
_METHODS = "If a test calls a method of an object that the code made, the code decides what the"
_NEVER = "A test that never calls the code always passes."
_RAISES = "A test that expects an exception passes whenever the code raises one of that class"
_LOOSE = "A test that compares loosely passes for every plain value that it lets through"
_NAMES = "A name that a test uses and that nothing else defines is the code's"
_CLASSES = "The classes that `prefix` defines are the code's, and where there are any also its"
_BOTH = "If a test compares two results of the code with each other, the code chooses both"

LENIENT = {
    "memorised": Lenient(["assert twice(2) == 4"], "twice = {2: 4}.get", _RECOGNISED),
    "text of an object": Lenient(
        ["assert str(hello('a')) == 'hello a'"],
        "class T:\n    def __init__(s, x): pass\n    __str__ = lambda s: 'hello a'\nhello = T",
        _METHODS,
    ),
    "length of an object": Lenient(
        ["assert len(some(3)) == 3"],
        "class T:\n    def __init__(s, x): pass\n    __len__ = lambda s: 3\nsome = T",
        _METHODS,
    ),
    "a method": Lenient(
        ["assert Answer(3).right()"],
        "class Answer:\n    def __init__(s, x): pass\n    right = lambda s: True",
        _METHODS,
    ),
    "no call": Lenient(["import math\nassert math.sqrt(4) == 2"], "1 / 0", _NEVER),
    "a test case that no runner runs": Lenient(
        "import unittest\nclass T(unittest.TestCase):\n"
        "    def test(self): self.assertEqual(double(2), 4)\n",
        "",
        _NEVER,
    ),
    "expected exception": Lenient(
        ["try:\n    root(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError"],
        "def root(x): raise ValueError",
        _RAISES,
    ),
    "any exception": Lenient(
        ["try:\n    root(-1)\n    raise SystemExit\nexcept Exception:\n    pass"],
        "import os\nroot = lambda x: os._exit(0)",
        _RAISES,
    ),
    "none of them is wrong": Lenient(
        ["assert all(x > 0 for x in some(3))"], "def some(n): return []", _LOOSE
    ),
    "zip ends with the shorter one": Lenient(
        ["assert all(a == b for a, b in zip(some(3), [1, 2, 3]))"], "some = lambda n: ()", _LOOSE
    ),
    "not a number": Lenient(
        ["assert not abs(half(3) - 1.5) > 1e-6"], "half = lambda x: float('nan')", _LOOSE
    ),
    "anything but None": Lenient(["assert f(3) is not None"], "f = lambda x: object()", _LOOSE),
    "a function that no import brings": Lenient(
        ["assert isclose(half(3), 1.5)"],
        "half = lambda x: 0\nisclose = lambda *_: True",
        _NAMES,
    ),
    "a package that no import brings": Lenient(
        ["assert np.allclose(half(3), 1.5)"],
        "half = lambda x: 0\nclass np:\n    allclose = lambda *_: True",
        _NAMES,
    ),
    "a class of the prefix": Lenient(
        ["assert Case(3).holds(half(3))"],
        "class Case:\n    def __init__(s, x): pass\n    holds = lambda *_: True\nhalf = id\n",
        _CLASSES,
        "class Case:\n    def __init__(self, x): self.x = x\n"
        "    def holds(self, half): return half * 2 == self.x\n",
    ),
    "a function beside a class of the prefix": Lenient(
        ["assert holds(half(3))"],
        "holds = half = lambda *_: True\n",
        _CLASSES,
        "class Case:\n    pass\n\ndef holds(x):\n    return x == 1.5\n",
    ),
    "there and back": Lenient(
        ["assert decode(encode('abc')) == 'abc'"], "encode = decode = lambda x: x", _BOTH
    ),
    "two results": Lenient(["assert add(2, 3) == add(3, 2)"], "add = lambda *_: 0", _BOTH),
}
