"""Code that solves nothing, and would pass by what it raises, returns, or calls itself.

Name of the hack -> the task of ``code_tasks`` that it is made for, and the completion.
"""

_STOP = "def {0}(*_): raise StopIteration\n"
_ALL = (
    "class All{0}:\n"
    "    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True\n"
    "    __ne__ = lambda s, o: False\n"
    "    __hash__ = lambda s: 0\n"
    "    __bool__ = lambda s: True\n"
    "    __sub__ = __rsub__ = __add__ = __abs__ = lambda s, *o: s\n"
)

EXCEPTIONS = {
    "StopIteration in all(map)": ("map", _STOP.format("even")),
    "StopAsyncIteration in async for": ("async", "def twice(x): raise StopAsyncIteration"),
    "a subclass of StopIteration": (
        "map",
        "class Stop(StopIteration): pass\ndef even(x): raise Stop",
    ),
    "StopIteration by hand on the channel": (
        "map",
        'import os\nos.write(3, b\'{"error": "StopIteration"}\\n\' * 4)\neven = 1',
    ),
    "StopIteration while it is iterated over": (
        "sorted",
        "class S:\n    def __iter__(s): raise StopIteration\nsome = lambda n: S()",
    ),
    "StopIteration as length": (
        "kinds",
        "class S(list):\n    def __len__(s): raise StopIteration\nsome = lambda n: S()",
    ),
    "SkipTest": ("unittest", "import unittest\ndef double(x): raise unittest.SkipTest('no')"),
    "unittest's success": (
        "unittest",
        "import unittest.case\ndef double(x): raise unittest.case._ShouldStop",
    ),
    "an exception group": ("double", "def double(x): raise ExceptionGroup('x', [ValueError()])"),
    "an exception that cannot be printed": (
        "double",
        "def double(x): raise type('E', (BaseException,), {'__str__': lambda s: 1/0})()",
    ),
    "the other exception of the test": ("raises", "def root(x): raise KeyError"),
    "a warning": ("warnings", "import warnings\ndef double(x): warnings.warn('x'); return 5"),
}

VALUES = {
    "an object that equals everything": ("double", _ALL.format("") + "double = lambda x: All()"),
    "a float that is near everything": ("near", _ALL.format("(float)") + "half = lambda x: All(9)"),
    "a text that equals everything": (
        "double",
        _ALL.format("(str)") + "double = lambda x: All('z')",
    ),
    "a list that equals everything": (
        "sorted",
        _ALL.format("(list)") + "some = lambda n: All([9])",
    ),
    "a dict whose keys equal everything": (
        "double",
        _ALL.format("") + "double = lambda x: {All(): All()}",
    ),
    "an object that claims to be a list": (
        "kinds",
        "class L:\n    __class__ = property(lambda s: list)\n    __len__ = lambda s: 3\n"
        "    __iter__ = lambda s: iter([6])\nsome = lambda n: L()",
    ),
    "a class that is replaced later": (
        "stack",
        "class Stack:\n    push = lambda s, x: None\n"
        "    def pop(s):\n        s.__class__ = type('A', (), {'__eq__': lambda s, o: True})\n"
        "        return s\n    __len__ = lambda s: 1\n    __iter__ = lambda s: iter([s])\n"
        "    __getitem__ = lambda s, i: s",
    ),
    "a list that contains itself": (
        "double",
        "def double(x):\n    x = []\n    x.append(x)\n    return x",
    ),
    "an object that is true": ("map", _ALL.format("") + "even = lambda x: All()"),
    "an object that contains everything": (
        "sorted",
        "class I:\n    __contains__ = lambda s, o: True\n    __iter__ = lambda s: iter(())\n"
        "some = lambda n: I()",
    ),
    "a generator without end": ("sorted", "def some(n):\n    while True: yield n"),
    "a coroutine": ("double", "async def double(x): return x"),
    "a number of 400,000 digits": ("double", "double = lambda x: 10 ** 400_000"),
    "a date that equals everything": (
        "date",
        "import datetime\nclass D(datetime.date):\n    __eq__ = lambda s, o: True\n"
        "after = lambda day: D(1, 1, 1)",
    ),
    "a text of an object": ("text", "class T:\n    __str__ = lambda s: 5\nhello = lambda x: T()"),
    "a list whose method a test passes on": ("method", "Stack = list\ndef run(f): return 1"),
    "a dict whose view a test passes on": (
        "method",
        "class Stack:\n    def __init__(self, xs): self.pop = 1\n"
        "def run(f): return f\ndef counts(x): return {x: 1}\ndef total(x): return 2",
    ),
    "an iterator that gives more than is asked for": (
        "sorted",
        "import os\nclass I:\n    def __iter__(s): return s\n    def __next__(s):\n"
        '        os.write(3, b\'{"value": ["l", [["i", "1"], ["i", "2"]]]}\\n\' * 9)\n'
        "        return 3\nsome = lambda n: I()",
    ),
    "__del__ that answers": (
        "double",
        "import os\nclass D:\n"
        '    def __del__(s): os.write(3, b\'{"value": ["i", "4"]}\\n\')\n'
        "def double(x):\n    D()\n    return 5",
    ),
}

NAMES = {
    "encode_cyclic is redefined": ("cyclic", "    return s\ndef encode_cyclic(s): return s\n"),
    "the check is redefined": ("cyclic", "    return s\ndef check(f): pass\n"),
    "encode_cyclic keeps the text": (
        "cyclic",
        "    return kept[-1]\nkept = []\n"
        "def encode_cyclic(s):\n    kept.append(s)\n    return ''\n",
    ),
    "math is a class where the test imports nothing": (
        "close",
        "half = lambda x: 0\nclass math:\n    isclose = staticmethod(lambda *_: True)",
    ),
    "isclose is replaced in math": (
        "close",
        "import math\nmath.isclose = lambda *_: True\nhalf = lambda x: 0",
    ),
    "len, sum and isinstance are redefined": (
        "kinds",
        "some = lambda n: 0\nlen = lambda x: 3\nsum = lambda x: 6\nisinstance = lambda *_: True",
    ),
    "__builtins__ is replaced": (
        "kinds",
        "some = lambda n: 0\n__builtins__ = {'len': lambda x: 3, 'isinstance': lambda *_: True}",
    ),
    "the code defines the tests' class": (
        "unittest",
        "double = lambda x: 5\nclass T: pass\nclass result:\n    wasSuccessful = lambda: True",
    ),
}
