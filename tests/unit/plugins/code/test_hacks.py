"""``python_tests`` and code that does not solve its task: none passes, except as the page says."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from code_tasks import TASKS
from hacks_of_objects import EXCEPTIONS, NAMES, VALUES
from hacks_of_processes import ENDINGS, MACHINERY, OUTPUT
from honest_code import HONEST
from lenient_tests import LENIENT
from rlax_code import PythonTests, PythonTestsConfig

from rlax_plugin.api import sandbox_layers
from rlax_plugin.testing import make_prompt

pytestmark = pytest.mark.skipif(
    bool(sandbox_layers().missing), reason=f"this machine lacks {sandbox_layers().missing}"
)
PAGE = " ".join((Path(__file__).parents[4] / "docs/sandbox.md").read_text().split())
HACKS = EXCEPTIONS | VALUES | NAMES | ENDINGS | OUTPUT | MACHINERY


@pytest.fixture(scope="module")
def rewards() -> Iterator[dict[bool, PythonTests]]:
    """With a tested function that the data names, and without."""
    columns = {"setup": "setup", "prefix": "prefix"}
    plain = PythonTests(PythonTestsConfig(**columns, test_s=1.0))
    found = {False: plain, True: PythonTests(PythonTestsConfig(**columns, entry_point="entry"))}
    yield found
    for one in found.values():
        one.close()


def score(rewards: dict[bool, PythonTests], completion: str, **columns: Any) -> float:
    prompt = replace(make_prompt("solve it"), metadata={"setup": "", "prefix": "", **columns})
    return rewards[bool(columns.get("entry"))](prompt, completion).total


def of_task(rewards: dict[bool, PythonTests], name: str, completion: str) -> float:
    task = TASKS[name]
    columns = {"tests": task.tests, "prefix": task.prefix, "entry": task.entry}
    return score(rewards, completion, **columns, setup=task.setup)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_solved(rewards: dict[bool, PythonTests], name: str) -> None:
    assert of_task(rewards, name, TASKS[name].solved) == 1.0


@pytest.mark.parametrize("name", HONEST)
def test_right_code_of_any_form_passes(rewards: dict[bool, PythonTests], name: str) -> None:
    tests, prefix, code = HONEST[name]
    assert score(rewards, code, tests=tests, prefix=prefix) == 1.0


def test_of_the_code_a_named_function_is_all_that_tests_have(
    rewards: dict[bool, PythonTests],
) -> None:
    task = TASKS["cyclic"]
    code = f"{task.prefix}{task.solved}"
    with pytest.raises(ValueError, match=r"cannot be used: the test uses encode_cyclic, which .*"):
        score(rewards, code, tests=task.tests, entry=task.entry)
    assert score(rewards, code, tests=task.tests, entry=task.entry, prefix=task.prefix) == 1.0
    assert score(rewards, code, tests=task.tests, entry=task.entry, setup=task.prefix) == 1.0


def test_check_is_called_with_the_function_of_the_code(rewards: dict[bool, PythonTests]) -> None:
    test = "def check(candidate):\n    assert candidate(10, 15) == 6 and sum([1, 2]) == 3\n"
    code = "def sum(a, b): return {0}\n"
    assert score(rewards, code.format(6), tests=test, entry="sum") == 1.0
    assert score(rewards, code.format(5), tests=test, entry="sum") == 0.0
    assert score(rewards, "", tests=test, entry="sum") == 0.0
    forged = "def check(f): pass\nf = 1"
    with pytest.raises(ValueError, match=r"cannot be used: .*the test defines no function check"):
        score(rewards, forged, tests="assert True", entry="f")


@pytest.mark.parametrize("line", ["import no_such_module", "from solution import f"])
def test_a_test_that_imports_what_is_not_there_cannot_be_used(
    rewards: dict[bool, PythonTests], line: str
) -> None:
    with pytest.raises(ValueError, match=r"test 1 .* cannot be used: ModuleNotFoundError: No mod"):
        score(rewards, "def f(x): return x", tests=f"{line}\nassert f(1) == 1")
    # Only if it is the test that does so.
    code = "def f(x): import no_such_module"
    assert score(rewards, code, tests="assert f(1) == 1") == 0.0


@pytest.mark.parametrize("hack", HACKS)
def test_no_hack_passes(rewards: dict[bool, PythonTests], hack: str) -> None:
    assert of_task(rewards, *HACKS[hack]) == 0.0


@pytest.mark.parametrize("name", LENIENT)
def test_what_lenient_tests_let_pass_is_on_the_page(
    rewards: dict[bool, PythonTests], name: str
) -> None:
    one = LENIENT[name]
    assert score(rewards, one.code, tests=one.tests, prefix=one.prefix) == 1.0
    assert one.because in PAGE
