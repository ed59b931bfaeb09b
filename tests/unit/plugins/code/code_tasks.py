"""Tasks as data sets of code have them: columns of a prompt, and code that solves it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt.

    Attributes:
      solved: a completion that passes every test.
      prefix, entry: as in HumanEval; "": the data set has no such column.
    """

    tests: Any
    solved: str
    prefix: str = ""
    entry: str = ""
    setup: str = ""


_CYCLIC = '''def encode_cyclic(s: str):
    """
    returns encoded string by cycling groups of three characters.
    """
    groups = [s[(3 * i):min((3 * i + 3), len(s))] for i in range((len(s) + 2) // 3)]
    groups = [(group[1:] + group[0]) if len(group) == 3 else group for group in groups]
    return "".join(groups)


def decode_cyclic(s: str):
    """
    takes as input string encoded with encode_cyclic function. Returns decoded string.
    """
'''
_CYCLIC_TEST = """def check(candidate):
    from random import choice
    import string
    letters = string.ascii_lowercase
    for _ in range(5):
        text = ''.join(choice(letters) for i in range(20))
        encoded = encode_cyclic(text)
        assert candidate(encoded) == text
"""
_NODES = """class Node:
    def __init__(self, value, rest=None):
        self.value, self.rest = value, rest


def chain(values):
    first = None
    for value in reversed(values):
        first = Node(value, first)
    return first


def reverse(node):
"""


TASKS = {
    "double": Task(
        ["assert double(2) == 4", "assert double([1]) == [1, 1]", "assert double('a') == 'aa'"],
        "def double(x):\n    return x * 2\n",
    ),
    "map": Task(["assert all(map(even, [2, 4, 6]))"], "def even(x): return x % 2 == 0"),
    "async": Task(
        [
            "import asyncio\n"
            "class Twice:\n"
            "    def __init__(self): self.left = [1, 2]\n"
            "    def __aiter__(self): return self\n"
            "    async def __anext__(self):\n"
            "        if not self.left: raise StopAsyncIteration\n"
            "        return twice(self.left.pop())\n"
            "async def main():\n    async for one in Twice(): assert one in (2, 4)\n"
            "asyncio.run(main())"
        ],
        "def twice(x): return 2 * x",
    ),
    "cyclic": Task(
        _CYCLIC_TEST, "    return encode_cyclic(encode_cyclic(s))\n", _CYCLIC, "decode_cyclic"
    ),
    "close": Task(["assert math.isclose(half(3), 1.5)"], "import math\ndef half(x): return x / 2"),
    "near": Task(["assert abs(half(3) - 1.5) < 1e-6"], "def half(x): return x / 2"),
    "sorted": Task(
        ["assert sorted(some(3)) == [1, 2, 3]", "assert set(some(2)) == {1, 2}"],
        "def some(n): return list(range(n, 0, -1))",
    ),
    "kinds": Task(
        ["assert isinstance(some(3), list) and len(some(3)) == 3 and sum(some(3)) == 6"],
        "def some(n): return [1, 2, 3]",
    ),
    "text": Task(["assert str(hello('a')) == 'hello a'"], "def hello(x): return f'hello {x}'"),
    "date": Task(
        ["assert after(datetime.date(2024, 2, 28)) == datetime.date(2024, 2, 29)"],
        "import datetime\ndef after(day): return day + datetime.timedelta(1)",
    ),
    "unittest": Task(
        "import unittest\nclass T(unittest.TestCase):\n"
        "    def test(self): self.assertEqual(double(2), 4)\n"
        "result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T)"
        ")\nassert result.wasSuccessful() and result.testsRun == 1\n",
        "def double(x):\n    return x * 2\n",
    ),
    "random": Task(
        ["import random, time\nx = random.random() + time.time()\nassert double(x) == x + x"],
        "def double(x):\n    return x * 2\n",
    ),
    "warnings": Task(
        [
            "import warnings\nwith warnings.catch_warnings(record=True) as found:\n"
            "    assert double(2) == 4 and not found"
        ],
        "def double(x):\n    return x * 2\n",
    ),
    "stack": Task(
        [
            "s = Stack()\ns.push(3)\ns.push((4, {'a': {5}}))\nassert s.pop() == (4, {'a': {5}})",
            "s = Stack()\ns.push('x')\nassert len(s) == 1 and list(s) == ['x'] and s[0] == 'x'",
        ],
        "class Stack:\n"
        "    def __init__(self): self.items = []\n"
        "    def push(self, one): self.items.append(one)\n"
        "    def pop(self): return self.items.pop()\n"
        "    def __len__(self): return len(self.items)\n"
        "    def __getitem__(self, place): return self.items[place]\n",
    ),
    "program": Task(
        [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5", "output": "10"}],
        "print(sum(map(int, input().split())))",
    ),
    "leaves": Task(
        [{"input": "1\n", "output": "1\n"}, {"input": "-1", "output": "none"}],
        "n = int(input())\nif n < 0:\n    print('none')\n    exit()\nprint(n)\nquit(0)\n",
    ),
    "method": Task(
        ["s = Stack([1])\nassert run(s.pop) == 1", "assert total(counts('ab').values()) == 2"],
        "class Stack:\n    def __init__(self, xs): self.xs = xs\n"
        "    def pop(self): return self.xs.pop()\n"
        "class Counts(Stack):\n    def values(self): return [1] * len(self.xs)\n"
        "def run(f): return f()\ncounts, total = Counts, sum",
    ),
    "nodes": Task(
        ["node = reverse(chain([1, 2]))\nassert (node.value, node.rest.value) == (2, 1)"],
        "    rest = None\n    while node:\n        rest = Node(node.value, rest)\n"
        "        node = node.rest\n    return rest\n",
        _NODES,
    ),
    "raises": Task(
        [
            "try:\n    root(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
            "assert root(9) == 3",
        ],
        "class Negative(ValueError): pass\n"
        "def root(x):\n    if x < 0: raise Negative\n    return round(x ** 0.5)",
    ),
}
"""The tasks of the hacks, each with a solution of its own."""
