"""Functions that cannot be rewards: one message each, with file, line and what is right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlax_plugin.config.functions import parse_function
from rlax_plugin.reward.functions.checking import checked_signature, read_file
from rlax_plugin.reward.functions.signatures import FunctionError, inspected

WRONG = {
    "syntax": ("def f(completion):\n    return 1 +\n", "f.py, line 2: it is not Python"),
    "null byte": ("x = 1\0\n", "it is not Python"),
    "import error": (
        "import os\nimport no_such_module\n",
        "f.py, line 2: it raises ModuleNotFoundError: No module named 'no_such_module' when it is "
        "imported: install it, or add its directory to PYTHONPATH",
    ),
    "error in a call": (
        "def g():\n    return 1 / 0\n\nx = g()\n",
        "f.py, line 2: it raises ZeroDivisionError: division by zero when it is imported",
    ),
    "exit": (
        "import sys\nsys.exit(3)\n",
        "f.py, line 2: it calls sys.exit(3) when it is imported: put code that runs as a program",
    ),
    "unprintable": (
        "class E(Exception):\n    def __str__(self):\n        raise ValueError\nraise E\n",
        "f.py, line 4: it raises E when it is imported",
    ),
    "missing": (
        "def ff(completion):\n    return 1\n\nf_ = 2\n",
        "f.py has no function 'f'; did you mean 'ff'? known: ff",
    ),
    "number": ("f = 3\n", "f of f.py is 3, and cannot be called: it must be a function: def f("),
    "class": ("class f:\n    pass\n", "f of f.py is a class: it must be a function"),
    "object": (
        "class C:\n    def __call__(self, completion):\n        return 1\nf = C()\n",
        "f of f.py is an object of type C: it must be a function",
    ),
    "lambda": ("\nf = lambda completion: 1.0\n", "f of f.py is a lambda (line 2): it must be"),
    "generator": (
        "def f(completions):\n    yield 1.0\n",
        "f (f.py, line 1) is a generator: it must return its value, and not yield it",
    ),
    "positional-only": (
        "def f(completion, /):\n    return 1\n",
        "f (f.py, line 1): its parameter 'completion' is positional-only: remove the /",
    ),
    "star": (
        "def f(completion, *others):\n    return 1\n",
        "f (f.py, line 1): *others cannot be filled: parameters are given by name",
    ),
    "no parameter": (
        "def f():\n    return 1\n",
        "f (f.py, line 1) takes no parameter, and neither 'completion'",
    ),
    "no answer": (
        "def f(text, answer):\n    return 1\n",
        "f (f.py, line 1) takes 'text', 'answer', and neither 'completion'",
    ),
    "both forms": (
        "def f(completion, prompts):\n    return 1\n",
        "takes 'prompts', a list over the samples of a group, and 'completion', of one sample",
    ),
    "of TRL": (
        "def f(completions, trainer_state):\n    return 1\n",
        "its parameter 'trainer_state' is an object of TRL's trainer, which does not exist here",
    ),
    "file beside it": (
        "def f(completion):\n    import beside_it\n    return beside_it.x\n",
        "f.py, line 2: it imports 'beside_it', a file beside it, of which a run would keep no copy",
    ),
    "relative": (
        "from . import x\ndef f(completion):\n    return x\n",
        "f.py, line 1: it imports relative to a package, but a file of functions is none",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beside_it.py").write_text("x = 1\n")
    return tmp_path


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_function_has_one_message(folder: Path, what: str) -> None:
    source, said = WRONG[what]
    (folder / "f.py").write_text(source)
    with pytest.raises(FunctionError) as caught:
        inspected(str(folder / "f.py"), "", "f", "reward")
    message = str(caught.value)
    assert said in message and "\n" not in message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(completion):\n    return True\n", "it has no 'completion', as a filter sees a"),
        ("async def f(rewards):\n    return True\n", "is async: a filter must be a plain def"),
    ],
)
def test_what_a_filter_cannot_be(folder: Path, source: str, said: str) -> None:
    (folder / "f.py").write_text(source)
    with pytest.raises(FunctionError, match=said):
        inspected(str(folder / "f.py"), "", "f", "filter")


def test_modules_and_decorated_functions_are_found(folder: Path, monkeypatch) -> None:
    with pytest.raises(FunctionError, match=r"module no_such_package\.x: it raises ModuleNotFound"):
        inspected("", "no_such_package.x", "f", "reward")
    (folder / "a_module_of_functions.py").write_text(
        "import functools\n\n\ndef twice(function):\n    @functools.wraps(function)\n"
        "    def inner(**given):\n        return 2 * function(**given)\n    return inner\n\n\n"
        "@twice\ndef f(completion, level=2):\n    return 1\n"
    )
    monkeypatch.syspath_prepend(folder)
    found = inspected("", "a_module_of_functions", "f", "reward")
    assert (found.form, found.required, found.optional) == ("sample", ("completion",), ("level",))
    assert found.where == "f (a_module_of_functions.py, line 11)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rewards.py", "must name a file and a function"),
        ("rewards.py:f()", "must name a function that a file defines with def"),
        ("rewards.py:", "cannot be the name of a function"),
        ("rewards.py:class", "cannot be the name of a function"),
        ("rewards.txt/x:f", "must be a file that ends in .py"),
        ("my-rewards:f", "neither a file that ends in .py nor a module"),
        ("~/rewards.py:f", "~ is not expanded here"),
        ("s3://b/rewards.py:f", "must be a file on this machine"),
        (".py:f", "must be a file with a name"),
        (3, "must be text"),
        ("a\n.py:f", "must be text"),
    ],
)
def test_a_name_that_is_none(text: object, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        parse_function(text)


def test_files_that_are_none(folder: Path) -> None:
    (folder / "rewards.py").write_text("")
    (folder / "folder.py").mkdir()
    (folder / "large.py").write_bytes(b"#" * ((1 << 20) + 1))
    for name, said in {
        "reward.py": "there is no file .*; did you mean 'rewards.py'",
        "folder.py": "is a directory: name a file in it",
        "large.py": "has 1,048,577 bytes, and may have 1,048,576",
    }.items():
        with pytest.raises(FunctionError, match=said):
            read_file(folder / name)


def test_a_file_that_ends_the_process_or_hangs_is_one_message(folder: Path) -> None:
    path = folder / "f.py"
    for source, deadline_s, said in [
        ("import os\nos._exit(0)\n", 60.0, "f.py ends the process with exit code 0"),
        ("import os\nos.kill(os.getpid(), 9)\n", 60.0, "f.py ends the process by signal 9"),
        ("while True:\n    pass\n", 0.5, "f.py takes longer than 0.5 s to be imported (set rlax"),
    ]:
        path.write_text(source)
        with pytest.raises(FunctionError) as caught:
            checked_signature(f"{path}:f", "reward", {}, deadline_s)
        assert said in str(caught.value)


def test_what_a_file_prints_is_no_answer(folder: Path) -> None:
    (folder / "f.py").write_text(
        'import os\nprint("{}")\nos.write(1, b"{}")\ndef f(completion):\n    return 1\n'
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rlax_plugin.reward.functions.signatures",
            "f.py",
            "",
            "f",
            "reward",
        ],
        cwd=folder,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["signature"]["required"] == ["completion"]
