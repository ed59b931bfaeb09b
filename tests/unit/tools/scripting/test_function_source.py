"""The source of a notebook's functions: what is written, that it does the same, what is refused."""

import functools
import sys
from types import ModuleType
from typing import Any

import pytest
from cells import notebook, run_cell

from rlax_plugin.tools.scripting.function_source import Gatherer, NoSourceError


def gathered(names: dict[str, Any], *functions: str) -> str:
    gatherer = Gatherer()
    for name in functions:
        gatherer.add(names[name])
    return gatherer.text()


def imported(text: str) -> dict[str, Any]:
    """The names of a written file, executed as a reward process would import it."""
    names: dict[str, Any] = {"__name__": "rewards"}
    exec(compile(text, "rewards.py", "exec", dont_inherit=True), names)
    return names


USES_ALL = """
import math
import xml.etree.ElementTree
from collections import Counter
from fractions import Fraction as F
from typing import Optional
import re
import os.path as paths

LIMIT = 3
TABLE = {"a": [1, 2.5, None], "b": (True, "é\\n")}
VOWELS = {"e", "a"}
STOPS = frozenset({".", "!"})
NUMBER = re.compile(r"[0-9]+", re.I)
UNUSED = object()


def even(number, base=2):
    return odd(number + 1) if number % base else number % base == 0


def odd(number):
    return not even(number)


def correct(completion: str, reference: Optional[str] = None, limit=LIMIT, *, mode="x"):
    'Doc.'
    words = [word for word in NUMBER.findall(completion) if even(int(word))]
    node = xml.etree.ElementTree.fromstring("<a/>").tag
    share = F(len(words), limit)
    return {
        "share": float(share), "pi": math.floor(math.pi), "node": node,
        "vowels": sum(Counter(completion)[v] for v in VOWELS),
        "table": TABLE["b"], "base": paths.basename("a/b"), "mode": mode,
        "later": (lambda: LIMIT + 1)(), "stops": "." in STOPS,
    }
"""


def test_a_written_function_does_what_it_did() -> None:
    names = notebook(USES_ALL)
    text = gathered(names, "correct")
    written = imported(text)
    asked = "12 apples, 3 pears and 4 é"
    assert written["correct"](asked) == names["correct"](asked)
    assert written["correct"](asked)["share"] == 2 / 3
    assert written["correct"].__doc__ == "Doc." and written["correct"].__kwdefaults__ == {
        "mode": "x"
    }
    assert "UNUSED" not in text and text.count("def even") == text.count("def odd") == 1
    # The same cells in another process, where sets have another order, give the same text.
    assert "VOWELS = {'a', 'e'}" in text and "frozenset({'!', '.'})" in text
    assert gathered(notebook(USES_ALL), "correct") == text


def test_constants_are_written_as_they_are_now_and_functions_once() -> None:
    names = notebook(
        "BASE = 1",
        "def score(completion):\n    return BASE\n",
        "def other(completion):\n    return score(completion) + BASE\n",
        "alias = score\ndef third(completion):\n    return alias(completion)\n",
        "BASE = 5",
    )
    text = gathered(names, "score", "other", "third")
    written = imported(text)
    assert [written[name]("") for name in ("score", "other", "third")] == [5, 10, 5]
    assert text.count("BASE = ") == 1 and text.count("def score") == 1


def test_annotations_are_kept_as_the_notebook_has_them() -> None:
    cell = "from __future__ import annotations\ndef f(completion: Unknown) -> None:\n    return 1\n"
    text = gathered(notebook(cell), "f")
    assert imported(text)["f"].__annotations__ == {"completion": "Unknown", "return": "None"}
    cell = "class Text(str): ...\ndef f(completion: Text, level: 'Level') -> None:\n    return 1\n"
    text = gathered(notebook(cell), "f")  # what they name is not needed
    assert imported(text)["f"].__annotations__["completion"] == "Text"


def test_types_of_fields_of_a_class_inside_the_function_are_imported(monkeypatch) -> None:
    """Pydantic evaluates them; those of the function's own arguments nobody does."""
    cell = (
        "from fractions import Fraction\nfrom typing import Optional\n"
        "from pydantic import BaseModel, ConfigDict\n"
        "def f(completion):\n"
        "    class Out(BaseModel):\n"
        "        x: Optional[float]\n"
        "    return Out.model_validate_json(completion).x\n"
    )
    module = ModuleType("written_rewards")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # as the reward process has it
    exec(compile(gathered(notebook(cell), "f"), "rewards.py", "exec"), vars(module))
    assert module.f('{"x": 2.5}') == 2.5


def test_each_function_brings_the_submodules_that_it_reads() -> None:
    names = notebook(
        "import xml.dom.minidom\nimport xml.etree.ElementTree",
        "def f(completion):\n    return xml.etree.ElementTree.fromstring(completion).tag\n",
        "def g(completion):\n    return xml.dom.minidom.parseString(completion)\n",
    )
    text = gathered(names, "f", "g")
    assert "import xml.etree.ElementTree\n" in text and "import xml.dom.minidom\n" in text


def test_async_functions_are_written() -> None:
    text = gathered(notebook("async def f(completion):\n    return 0.5\n"), "f")
    coroutine = imported(text)["f"]("")
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value == 0.5


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("f = lambda completion: 1", "is a lambda"),
        ("key = lambda c: 1\ndef f(c):\n    return key(c)", "calls key, which is a lambda"),
        ("class A:\n    def f(self): ...\nf = A().f", "is an object of the class method"),
        ("class A:\n    def f(self): ...\nf = A.f", "is defined inside A"),
        ("class A:\n    def __call__(self, c): ...\nf = A()", "object of the class __main__.A"),
        ("class f: ...", "is the class f"),
        ("import functools\nf = functools.partial(print)", "object of the class functools.partial"),
        ("f = len", "object of the class builtin_function_or_method"),
        ("def make(x):\n    def f(c):\n        return x\n    return f\nf = make(1)", "inside make"),
        ("import functools\n@functools.cache\ndef f(c): ...", "functools._lru_cache_wrapper"),
        ("def same(g):\n    return g\n@same\ndef f(c): ...", "is decorated"),
        ("def f(c): ...\nf.state = 1", "has attributes"),
        ("model = object()\ndef f(c):\n    return model", "uses model, which is or contains"),
        ("x = [open]\ndef f(c):\n    return x", "uses x, which is or contains an object"),
        ("x = float('nan')\ndef f(c):\n    return x", "contains an object of the class float"),
        ("x = []\nx.append(x)\ndef f(c):\n    return x", "contains an object of the class list"),
        (
            "class D(dict): ...\nx = [D()]\ndef f(c):\n    return x",
            "contains an object of the class",
        ),
        ("class A: ...\ndef f(c):\n    return A()", "uses A, which is or contains the class A"),
        ("x = 'a' * 2**21\ndef f(c):\n    return x", "a value of 2,097,154 characters"),
        ("def g(c):\n    return y\ndef f(c):\n    return g(c)", "calls g, which uses the name y"),
        ("n = 0\ndef f(c):\n    global n\n    n += 1", "assigns to the global name n"),
        ("def f(c):\n    return eval('n')", "calls eval"),
        ("def f(c):\n    return __file__", "uses the name __file__|uses __file__"),
        ("import random\ndef f(c, x=random.random()):\n    return x", "computed default of x"),
        ("X = 1\ndef f(c, x=X):\n    return x\nX = 2", "computed default of x"),
        ("def f[T](c: T):\n    return c", "has type parameters"),
        ("import types\nm = types.ModuleType('m')\ndef f(c):\n    return m.x", "no import"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(cell: str, reason: str) -> None:
    names = notebook(cell)
    with pytest.raises(NoSourceError, match=reason):
        Gatherer().add(names["f"])


def test_a_function_without_source_or_with_another_one_is_refused() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(c):\n    return 1", names)
    with pytest.raises(NoSourceError, match="source that cannot be read"):
        Gatherer().add(names["f"])
    names = notebook("def f(c):\n    return 1\n")
    first = names["f"]
    run_cell("def f(c):\n    return 2\n", names)
    with pytest.raises(NoSourceError, match="not what the name f means now"):
        Gatherer().add(first)
    assert imported(gathered(names, "f"))["f"]("") == 2
    # A script that was edited after it had started.
    names["f"].__code__ = names["f"].__code__.replace(co_consts=(None, 3))
    with pytest.raises(NoSourceError, match="is not what its source says now"):
        Gatherer().add(names["f"])


def test_functions_of_two_namespaces_do_not_mix() -> None:
    gatherer = Gatherer()
    gatherer.add(notebook("def f(c): ...\n")["f"])
    with pytest.raises(NoSourceError, match="another namespace"):
        gatherer.add(notebook("def g(c): ...\n")["g"])
    with pytest.raises(NoSourceError, match="class functools"):
        gatherer.add(functools.partial(print))  # pyright: ignore
