"""Right code of many forms, with tests that it must pass: name -> tests, prefix, code."""

HONEST: dict[str, tuple[str, str, str]] = {
    "a data class with annotations that are texts": (
        "p = Point(1, 2)\nassert p.length() == 5 and p.x == 1",
        "",
        "from __future__ import annotations\nfrom dataclasses import dataclass, field\n"
        "from typing import ClassVar\n@dataclass(order=True)\nclass Point:\n    x: int\n"
        "    y: int\n"
        "    all: ClassVar[list[Point]] = []\n    tags: list[str] = field(default_factory=list)\n"
        "    def length(self) -> int: return self.x ** 2 + self.y ** 2\n",
    ),
    "an iterator that ends with StopIteration": (
        "assert list(Count(3)) == [0, 1, 2] and [x for x in Count(1)] == [0]",
        "",
        "class Count:\n    def __init__(self, n): self.i, self.n = -1, n\n"
        "    def __iter__(self): return self\n    def __next__(self):\n        self.i += 1\n"
        "        if self.i == self.n: raise StopIteration\n        return self.i\n",
    ),
    "decimals, fractions and times": (
        "from decimal import Decimal\nfrom fractions import Fraction\nimport datetime as d\n"
        "assert half(Decimal('0.10')) == Decimal('0.05')\n"
        "assert half(Fraction(1, 3)) == Fraction(1, 6)\n"
        "span = d.timedelta(days=-1, microseconds=4)\n"
        "assert half(span) == d.timedelta(hours=-12, microseconds=2)\n"
        "utc = d.timezone.utc\nnow = d.datetime(2024, 2, 29, 1, 2, 3, 4, utc)\n"
        "assert same(now) == now and same(now.time()) == now.time()\n"
        "assert same(now.date()) == now.date() != now\n",
        "",
        "half = lambda x: x / 2\nsame = lambda x: x\n",
    ),
    "queues and ranges": (
        "assert turned(deque([1, 2])) == deque([2, 1]) and part(range(1, 9, 2)) == range(3, 9, 2)",
        "from collections import deque\n\ndef turned(xs):\n",
        "    xs.rotate()\n    return xs\n\ndef part(xs):\n    return xs[1:]\n",
    ),
    "named tuples and enumerations": (
        "assert low_high([2, 1]) == (1, 2)\nassert colour() == 2",
        "",
        "import enum\nfrom collections import namedtuple\nR = namedtuple('R', 'low high')\n"
        "def low_high(x): return Pair(min(x), max(x))\n"
        "class Pair:\n    def __new__(cls, *a): return R(*a)\n"
        "class Colour(enum.IntEnum):\n    RED = 2\ndef colour(): return Colour.RED\n",
    ),
    "a function of the prefix as argument": (
        "assert apply(twice, 3) == 6 and twice(2) == 4",
        "def twice(x):\n    return 2 * x\n\ndef apply(f, x):\n",
        "    return f(x)\n",
    ),
    "functions of the prefix that work on objects": (
        "assert values(reverse(chain([1, 2]))) == [2, 1] and values(None) == LIMITS == []",
        "LIMITS = []\nclass Node:\n    def __init__(self, value, rest):\n"
        "        self.value, self.rest = value, rest\n"
        "def chain(xs):\n    return Node(xs[0], chain(xs[1:])) if xs else None\n"
        "def values(node):\n    found = []\n    while node:\n        found.append(node.value)\n"
        "        node = node.rest\n    return found\ndef reverse(node):\n",
        "    new = None\n    while node:\n        new, node = Node(node.value, new), node.rest\n"
        "    return new\n",
    ),
    "exceptions of encodings": (
        "try:\n    text(b'\\xff')\nexcept ValueError as error:\n"
        "    assert 'invalid' in str(error)\n"
        "else:\n    raise AssertionError",
        "",
        "def text(x): return x.decode()",
    ),
    "types and functions of Python as arguments": (
        "assert of_kind((4, 'a', 7.7), int) == [4] and apply(len, 'abc') == 3\n"
        "assert apply(abs, -1) == 1 and kind_of(3, ValueError) == 'ValueError'",
        "",
        "def of_kind(xs, kind): return [x for x in xs if isinstance(x, kind)]\n"
        "def apply(f, x): return f(x)\ndef kind_of(x, error): return error.__name__\n",
    ),
    "the program anew after the prefix": (
        "assert find(poly([1, 2], 3)) == 7",
        "def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n\ndef find(x):\n"
        '    """Returns x."""\n',
        "\n\ndef poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n"
        "def find(x):\n    return x\n",
    ),
    "an import that the tests forgot": (
        "assert math.isclose(area(1), math.pi) and operator.eq(area(0), 0)",
        "",
        "import math\nimport operator\ndef area(r): return math.pi * r ** 2\n",
    ),
    "a global object": (
        "assert double.f(2) == 4 and double.NAME == 'x'",
        "",
        "class double:\n    NAME = 'x'\n    @staticmethod\n    def f(x): return x * 2\n",
    ),
    "generators that are read item by item": (
        "import itertools\ng = squares()\nassert next(g) == 0 and next(g) == 1\n"
        "for x in g:\n    assert x == 4\n    break\nassert next(g) == 9\n"
        "assert list(itertools.islice(squares(), 30)) == [x * x for x in range(30)]\n"
        "assert next(few(), 5) == 5 and [*zip(squares(), 'ab')] == [(0, 'a'), (1, 'b')]",
        "",
        "import itertools\ndef squares(): return (x * x for x in itertools.count())\n"
        "def few():\n    yield from ()\n",
    ),
    "objects whose attributes and items the tests set": (
        "a, b = Node(1), Node(2)\na.next, b.next = b, a\nassert has_cycle(a)\nb.next = None\n"
        "assert not has_cycle(a)\na['x'] = [3]\nassert a['x'] == [3] and a.next.value == 2",
        "",
        "class Node:\n    def __init__(self, value):\n"
        "        self.value, self.next, self.more = value, None, {}\n"
        "    def __setitem__(self, key, value): self.more[key] = value\n"
        "    def __getitem__(self, key): return self.more[key]\n"
        "def has_cycle(node):\n    seen = []\n    while node:\n"
        "        if node in seen: return True\n        seen.append(node)\n"
        "        node = node.next\n    return False\n",
    ),
}
