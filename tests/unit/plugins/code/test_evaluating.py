"""Tests that execute what the tested code returns are refused, and others are not."""

from dataclasses import replace

import pytest
from rlax_code import PythonTests, PythonTestsConfig
from rlax_code.evaluating import executing

from rlax_plugin.api import sandbox_layers
from rlax_plugin.testing import make_prompt

EXECUTE = {
    "eval": ("assert eval(f(3)) == 5", "eval"),
    "eval in a function": ("def check(f):\n    assert eval(f(3)) == 5", "eval"),
    "exec": ("space = {}\nexec(f(3), space)\nassert space['x'] == 5", "exec"),
    "compile": ("code = compile(f(3), 'f', 'eval')", "compile"),
    "import": ("assert __import__(f(3)).pi > 3", "__import__"),
    "an alias": ("run = eval\nassert run(f(3)) == 5", "eval"),
    "of builtins": ("import builtins as b\nassert b.eval(f(3)) == 5", "builtins"),
    "from builtins": ("from builtins import exec as run\nrun(f(3))", "builtins"),
    "of __builtins__": ("assert __builtins__['eval'](f(3)) == 5", "__builtins__"),
    "pickle": ("import pickle\nassert pickle.loads(f(3)) == 5", "pickle"),
    "pickle without an import": ("assert pickle.loads(f(3)) == 5", "pickle"),
    "from pickle": ("from pickle import loads as l\nassert l(f(3)) == 5", "pickle"),
    "dill": ("def check(f):\n    import dill\n    assert dill.loads(f(3)) == 5", "dill"),
    "an attribute that the code names": ("import os\ngetattr(os, f(3))(0)", "getattr of os"),
    "in a constant": ("eval('eval(f(3))')", "eval"),
}
HARMLESS = {
    "an attribute by its name": "import os\nassert getattr(os, 'sep') == f(3)",
    "a method": "model = Model()\nmodel.eval()\nassert model.exec(3) == model.compile(3)",
    "an argument": "def check(eval):\n    assert eval(3) == 5\ncheck(f)",
    "the tested function": "def check(candidate):\n    assert candidate('1 + 2') == 3",
    "a literal": "import ast\nassert ast.literal_eval(f(3)) == 5",
    "a literal by another name": "from ast import literal_eval as eval\nassert eval(f(3)) == 5",
    "a regular expression": "import re\nfrom re import compile\nassert compile(f(3)).match('a')",
    "constants": "assert f('1 + 2') == eval('1 + 2')\n__import__('math')\nexec('x = 3')",
    "words": "# eval(f(3))\nassert f('eval(x)') == 'exec(y)'",
    "a constant program": "assert f(3) == compile('1 + 2', '<t>', 'eval').co_name",
    "a dict of names": "assert f(3)['eval'] == 5",
    "no Python": "assert eval((",
    "no scope": "nonlocal x",
}


@pytest.mark.parametrize("case", EXECUTE)
def test_the_place_is_found(case: str) -> None:
    text, name = EXECUTE[case]
    found = executing(("import math", text))
    assert found is not None
    assert found[0] == 1 and found[2].startswith(name)


@pytest.mark.parametrize("case", HARMLESS)
def test_a_harmless_test_is_none(case: str) -> None:
    assert executing(("import math", HARMLESS[case])) is None


def test_names_of_one_text_are_those_of_the_others() -> None:
    assert executing(("", "x = 1\nassert eval(f(3)) == 5")) == (1, 2, "eval")
    assert executing(("def eval(x): return x", "assert eval(f(3)) == 5")) is None


@pytest.mark.skipif(bool(sandbox_layers().missing), reason="this machine lacks layers")
def test_the_prompt_is_refused_before_any_code_runs() -> None:
    """Also if an earlier test fails: whether the sample is scored does not depend on the code."""
    reward = PythonTests(PythonTestsConfig(setup="setup", prefix="prefix"))
    same = "def same(a, b):\n    return eval(a) == b\n"
    for column, text, message in (
        ("tests", ["assert f(2) == 4", "assert eval(f(3)) == 6"], "test 2 of prompt p7 .* line 1"),
        ("setup", same, "the setup of prompt p7 cannot be used: line 2 has eval, which may exec"),
        ("prefix", same, "the prefix of prompt p7 cannot be used: line 2 has eval"),
    ):
        columns = {"tests": ["assert f(2) == 4"], "setup": "", "prefix": ""} | {column: text}
        prompt = replace(make_prompt("double it"), id="p7", metadata=columns)
        with pytest.raises(ValueError, match=message):
            reward(prompt, "def f(x): return \"__import__('os')._exit(0)\"")
    reward.close()
