"""Tests that do not test enough: code that solves nothing passes them, as the page says."""

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
    "a method": Lenient(
        ["assert Answer(3).right()"],
        "class Answer:\n    def __init__(s, x): pass\n    right = lambda s: True",
        _METHODS,
    ),
    "no call": Lenient(["import math\nassert math.sqrt(4) == 2"], "1 / 0", _NEVER),
    "expected exception": Lenient(
        ["try:\n    root(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError"],
        "def root(x): raise ValueError",
        _RAISES,
    ),
    "not a number": Lenient(
        ["assert not abs(half(3) - 1.5) > 1e-6"], "half = lambda x: float('nan')", _LOOSE
    ),
    "a function that no import brings": Lenient(
        ["assert isclose(half(3), 1.5)"], "half = lambda x: 0\nisclose = lambda *_: True", _NAMES
    ),
    "a class of the prefix": Lenient(
        ["assert Case(3).holds(half(3))"],
        "class Case:\n    def __init__(s, x): pass\n    holds = lambda *_: True\nhalf = id\n",
        _CLASSES,
        "class Case:\n    def __init__(self, x): self.x = x\n"
        "    def holds(self, half): return half * 2 == self.x\n",
    ),
    "there and back": Lenient(
        ["assert decode(encode('abc')) == 'abc'"], "encode = decode = lambda x: x", _BOTH
    ),
}
