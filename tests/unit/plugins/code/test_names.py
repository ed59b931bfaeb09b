"""Which names of a test are the code's, and what a prefix gives to the tests."""

from rlax_code.needed_names import free_names, given, modules_among


def names_given(prefix: str, entry: str = "") -> tuple[set[str], set[str]]:
    source, left = given(prefix, entry)
    namespace: dict[str, object] = {}
    exec(source, namespace)
    return namespace.keys() - {"__builtins__", "__annotations__"}, left


def test_free_names_are_those_that_nobody_defines() -> None:
    texts = ["import a.b, c as d\nfrom e import f\n", "x = [g(y) for y in d] + [len(z := h)]\n"]
    assert free_names(texts) == {"g", "h"}
    inner = "def check(candidate):\n    import math\n    global made\n    made = math.pi\n"
    assert free_names([f"{inner}    assert near(candidate(one := 1), made)\n"]) == {"near"}
    assert free_names(["class T(Base):\n    x = 1\n    y = x + other\n"]) == {"Base", "other"}
    assert free_names(["try:\n    import a\nexcept E as e:\n    print(a, e)\n"]) == {"E"}
    assert free_names(["f = f"]) == set() and free_names([""]) == set()


def test_a_module_is_what_is_used_for_its_attributes_only() -> None:
    text = "math.isclose(bisect(1), queue.x)\nqueue(2)\nnp.allclose(1)\nos.path.join()\n"
    names = {"math", "bisect", "queue", "np", "os"}
    assert modules_among(names, [text]) == {"math", "os"}


def test_a_prefix_gives_its_helpers_and_leaves_what_is_continued() -> None:
    helper = "import math\ndef helper(x):\n    return x\n\n"
    for rest in ("def f(x):\n", 'def f(x):\n    """A doc."""\n', "def f(x):\n    y = 2\n"):
        assert names_given(f"{helper}{rest}")[0] == {"math", "helper"}
    assert names_given(f"{helper}@cache\ndef f(x):\n    y = (x +\n")[0] == {"math", "helper"}
    assert names_given("def f(x):\n    if x:\n        return 1\n") == (set(), {"f"})
    assert names_given("def f(x):\n    a = 1\n    y = (x +\n") == (set(), set())
    assert names_given(helper) == ({"math", "helper"}, set())
    assert names_given(helper, "helper") == ({"math"}, {"helper"})
    assert names_given("x = 1") == (set(), {"x"})  # may go on
    assert names_given("x = 1\n") == ({"x"}, set())
    assert names_given("") == names_given("    return 1") == (set(), set())


def test_functions_without_a_body_and_classes_are_left_with_all_that_needs_them() -> None:
    stubs = "def f(x): ...\ndef g(x):\n    raise NotImplementedError\ndef both(x): return f(g(x))\n"
    assert names_given(stubs) == ({"both"}, {"f", "g"})
    classes = (
        "import math\nclass Node:\n    pass\n"
        "def make(): return Node()\n"
        "def length(node): return 1\n"
        "ROOT = Node()\nLIMIT: int = 3\nMORE = [ROOT, LIMIT]\n"
    )
    left = {"Node", "make", "length", "ROOT", "MORE"}
    assert names_given(classes) == ({"math", "LIMIT"}, left)
    eager = "def f(x): ...\nX = f(1)\n@f\ndef g(x): return 1\ndef h(x=X): return 1\n"
    assert names_given(eager) == (set(), {"f", "X", "g", "h"})
    assert names_given("from math import *\ntry:\n    x = 1\nfinally:\n    pass\n")[1] == {"x"}
    assert "isclose" in names_given("from math import *\n")[0]
