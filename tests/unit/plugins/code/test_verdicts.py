"""``python_tests``: right code passes, and no code passes otherwise."""

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rlax_code import PythonTests, PythonTestsConfig
from waiting import wait_until

from rlax_plugin.api import Ending, Prompt, Sandbox, SandboxError, sandbox_layers
from rlax_plugin.testing import make_prompt

pytestmark = pytest.mark.skipif(
    bool(sandbox_layers().missing), reason=f"this machine lacks {sandbox_layers().missing}"
)
DOUBLE = ["assert double(2) == 4", "assert double([1]) == [1, 1]", "assert double('a') == 'aa'"]
RIGHT = "def double(x):\n    return x * 2\n"


@pytest.fixture(scope="module")
def share() -> Iterator[PythonTests]:
    reward = PythonTests(PythonTestsConfig(reward="share", test_s=2.0))
    yield reward
    reward.close()


def prompt(tests: Any, **columns: Any) -> Prompt:
    return replace(make_prompt("double it"), metadata={"tests": tests, **columns})


def passed(reward: PythonTests, tests: Any, code: str) -> float:
    return reward(prompt(tests), code).total


def test_the_share_of_tests_that_hold(share: PythonTests) -> None:
    assert passed(share, DOUBLE, RIGHT) == 1.0
    assert passed(share, DOUBLE, f"So:\n```python\n{RIGHT}```\nDone.") == 1.0
    assert passed(share, DOUBLE, "def double(x):\n    return 2 * int(x)\n") == pytest.approx(1 / 3)
    assert passed(share, DOUBLE, "def other(x): return 2 * x") == 0.0
    assert passed(share, DOUBLE, "this is no Python") == 0.0
    assert passed(share, DOUBLE, "") == 0.0


def test_one_test_sees_nothing_of_another(share: PythonTests) -> None:
    tests = ["assert count() == 1", "assert count() == 1", "assert count() == 1"]
    code = (
        "import os\ncalls = 0\n"
        "def count():\n"
        "    global calls\n"
        "    calls += 1\n"
        "    calls += os.path.exists('/tmp/again')\n"
        "    open('/tmp/again', 'w').close()\n"
        "    return calls\n"
    )
    assert passed(share, tests, code) == 1.0


def test_code_that_hangs_fails_and_is_counted(share: PythonTests) -> None:
    score = share(
        prompt(["assert f(1) == 1", "assert f(0) == 0"]),
        "def f(x):\n    while x: pass\n    return 0",
    )
    assert score.total == 0.5
    assert score.metrics == {"tests_passed": 0.5, "tests_late": 0.5}


def test_no_more_tests_are_tried_than_there_is_time_for() -> None:
    reward = PythonTests(PythonTestsConfig(reward="share", test_s=0.5, sample_s=0.9))
    score = reward(prompt(DOUBLE), "while True: pass")
    assert score.metrics == {"tests_passed": 0.0, "tests_late": 1.0}
    reward.close()


def test_programs_are_compared_by_what_they_print(share: PythonTests) -> None:
    tests = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5", "output": "10"}]
    add = "print(sum(map(int, input().split())))"
    assert passed(share, tests, add) == 1.0
    assert passed(share, {"inputs": ["1 2", "5 5"], "outputs": ["3", "10"]}, add) == 1.0
    assert passed(share, tests, "print(3, '  ')\nprint()\n") == 0.5
    assert passed(share, tests, f"{add}\nraise SystemExit(1)") == 0.0
    assert passed(share, tests, "print('3')\nprint('passed')") == 0.0
    assert passed(share, tests, "import os\nos._exit(0)") == 0.0
    assert passed(share, [{"input": "", "output": "ä🙂"}], "print('ä🙂')") == 1.0


def test_hostile_text_is_scored(share: PythonTests) -> None:
    for text in ("\udc80", "x = '\udc80'", "\0", "\u202e", "(" * 100_000, "x" * 2_000_000, "```"):
        assert passed(share, DOUBLE, text) == 0.0
    assert passed(share, DOUBLE, f"# {'x' * 900_000}\n{RIGHT}") == 1.0


def test_tests_that_cannot_be_used_leave_the_sample_unscored(share: PythonTests) -> None:
    for tests, said in (
        (["assert double(("], "test 1 of prompt .* cannot be used: SyntaxError"),
        ([DOUBLE[0], "assert double(lambda: 1)"], "test 2 .* plain data only, not function"),
        ([f"{DOUBLE[0]}\nassert double(x for x in 'a')"], "plain data only, not generator"),
        ([f"{DOUBLE[0]}\nimport math\ndouble(math.sqrt)"], "plain data only, not builtin"),
        ([f"{DOUBLE[0]}\nclass A: pass\ndouble([A()])"], "plain data only, not A"),
        ([f"{DOUBLE[0]}\nassert double(map(int, '12')) == 1"], "plain data only, not map"),
        ([f"{DOUBLE[0]}\nassert double(reversed([1])) == 1"], "only, not list_reverseiterator"),
        (["assert double(2) == 5\nimport no_such_module"], "used: ModuleNotFoundError: No mod"),
        ([], "has no tests in column 'tests', and the reference"),
        ([1, 2], "has no tests"),
        ({"inputs": ["1"], "outputs": []}, "has no tests"),
    ):
        with pytest.raises(ValueError, match=said):
            share(replace(prompt(tests), reference=""), RIGHT)


def test_what_a_test_never_runs_does_not_make_it_unusable(share: PythonTests) -> None:
    for line in ("import no_such_module", "return double(map(int, '12'))"):
        test = f"def spare(double):\n    {line}\nassert double(2) == 4"
        assert passed(share, [test], RIGHT) == 1.0
        assert passed(share, [test], RIGHT.replace("2", "3")) == 0.0


UNUSABLE_BY_THE_CODE = {
    "a method of a list in a tuple": (
        "a, b = both()\nassert used(b.append) == 1",
        "both = lambda: ([], [])",
    ),
    "a method of a number": (
        "assert used(money().compare) == 1",
        "import decimal\nmoney = decimal.Decimal",
    ),
    "a method of a global number": (
        "assert used(money.compare) == 1",
        "import decimal\nmoney = decimal.Decimal()",
    ),
    "an iterator over an object": (
        "i = iter(items())\nassert used(i) == 1",
        "class Items:\n    __iter__ = lambda s: iter([1])\nitems = Items",
    ),
    "its exception": (
        "try:\n    x = f(1)\nexcept ValueError as error:\n    x = error\nassert used(x) == 1",
        "def f(x): raise ValueError",
    ),
    "an import after an exception": (
        "try:\n    x = f(1)\nexcept ValueError:\n    import no_such_module\nassert x == 1",
        "def f(x): raise ValueError",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE_BY_THE_CODE)
def test_code_that_makes_a_test_unusable_fails(share: PythonTests, case: str) -> None:
    test, code = UNUSABLE_BY_THE_CODE[case]
    assert passed(share, [test], f"used = lambda x: 1\n{code}\n") == 0.0


@pytest.mark.parametrize("which", ["_code", "_judge"])
def test_a_sandbox_that_is_killed_leaves_the_sample_unscored(which: str) -> None:
    reward = PythonTests(PythonTestsConfig(test_s=20.0, sample_s=40.0))
    assert passed(reward, ["assert f(1) == 1"], "def f(x): return x") == 1.0
    sandbox = getattr(reward, which)
    server = sandbox._server

    def kill() -> None:
        wait_until(lambda: sandbox._jobs == 2, "the second test")
        signal.pidfd_send_signal(server._inner, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    slow = "import time\ndef f(x):\n    time.sleep(10)\n    return x\n"
    with pytest.raises(SandboxError) as error:
        passed(reward, ["assert f(1) == 1"], slow)
    assert error.value.ending == "process_ended"
    killer.join()
    assert passed(reward, ["assert f(1) == 1"], "def f(x): return x") == 1.0
    reward.close()


def test_the_start_of_the_sandboxes_is_no_time_of_the_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    started = Sandbox._started

    def slowly_started(sandbox: Sandbox) -> Any:
        now_s[0] += 20.0 * (sandbox._server is None)
        return started(sandbox)

    monkeypatch.setattr(Sandbox, "_started", slowly_started)
    monkeypatch.setattr("rlax_code.reward.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    reward = PythonTests(PythonTestsConfig(test_s=30.0, sample_s=60.0))
    score = reward(prompt([*DOUBLE, *DOUBLE]), RIGHT)
    reward.close()
    assert now_s == [40.0]
    assert (score.total, score.ending, score.metrics["tests_late"]) == (1.0, None, 0.0)


PROGRAM = [{"input": "", "output": "4"}]
# Tests, code, and the ending of a sample that scores 0.
BROUGHT_DOWN: dict[str, tuple[Any, str, Ending | None]] = {
    "wrong": (PROGRAM, "print(5)", None),
    "wrong result": (DOUBLE, "def double(x): return 5", None),
    "raises": (PROGRAM, "raise ValueError", Ending.CRASHED),
    "raises in a call": (DOUBLE, "def double(x): raise ValueError", None),
    "segfault": (PROGRAM, "import os\nos.kill(os.getpid(), 11)", Ending.CRASHED),
    "segfault in a call": (
        DOUBLE, "import os\ndef double(x): os.kill(os.getpid(), 11)", Ending.CRASHED,
    ),
    "its tests, which it is called by": (
        ["import os\nassert double(2) == 4\nos.kill(os.getpid(), 11)"], RIGHT, Ending.CRASHED,
    ),
    "too many processes": (PROGRAM, "import os\nwhile True: os.fork()", Ending.CRASHED),
    "a large object": (PROGRAM, "x = b'x' * (1 << 40)", Ending.CRASHED),
    "output": (PROGRAM, "print('4' * 10_000_000)", Ending.OVER_OUTPUT),
    "a full disk of its own": (
        PROGRAM, "for n in range(64): open(f'/tmp/{n}', 'wb').write(b'x' * 1_000_000)",
        Ending.CRASHED,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def patient() -> Iterator[PythonTests]:
    reward = PythonTests(PythonTestsConfig(test_s=30.0, sample_s=100.0))
    yield reward
    reward.close()


@pytest.mark.parametrize("case", BROUGHT_DOWN)
def test_code_that_brings_its_process_down_scores_0_and_says_how(
    patient: PythonTests, case: str
) -> None:
    tests, code, ending = BROUGHT_DOWN[case]
    score = patient(prompt(tests), code)
    assert (score.total, score.ending) == (0.0, ending)
    assert patient(prompt(PROGRAM), "print(4)").ending is None


def test_of_a_share_the_tests_that_hold_count_and_the_first_failure_is_named() -> None:
    reward = PythonTests(PythonTestsConfig(reward="share", test_s=2.0))
    code = "import os\ndef f(x):\n    if x == 1: os._exit(4)\n    while x: pass\n    return 0"
    score = reward(prompt(["assert f(0) == 0", "assert f(1)", "assert f(2)"]), code)
    assert (score.total, score.ending) == (pytest.approx(1 / 3), Ending.CRASHED)
    score = reward(prompt(["assert f(0) == 0", "assert f(2)", "assert f(1)"]), code)
    assert (score.total, score.ending) == (pytest.approx(1 / 3), Ending.OVER_TIME)
    reward.close()


def test_a_sandbox_that_does_not_start_leaves_the_sample_unscored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "rlax_plugin.reward.sandbox.sandbox.command"
    monkeypatch.setattr(path, lambda *arguments: ["/bin/false"])
    reward = PythonTests(PythonTestsConfig())
    with pytest.raises(SandboxError, match="the sandbox cannot be started") as error:
        passed(reward, PROGRAM, "print(4)")
    assert error.value.ending == "sandbox_failed"


def test_names_are_missing_whatever_the_code_does() -> None:
    reward = PythonTests(PythonTestsConfig(entry_point="entry"))
    always = "def check(f):\n    assert f(1) == 1\n    assert helped(1)\n"
    for code in ("f = lambda x: 1", "f = lambda x: 2"):
        with pytest.raises(ValueError, match="cannot be used: the test uses helped, which neither"):
            reward(prompt(always, entry="f"), code)
    tried = "import contextlib\ndef check(f):\n    with contextlib.suppress(ImportError):\n"
    tried += "        import no_such_module\n    assert f(1) == 1\n"
    assert reward(prompt(tried, entry="f"), "f = lambda x: 1").total == 1.0
    starred = "from math import *\ndef check(f):\n    assert f(4) == sqrt(4)\n"
    assert reward(prompt(starred, entry="f"), "f = lambda x: 2").total == 1.0
    reward.close()


def test_columns_of_other_data_sets() -> None:
    reward = PythonTests(
        PythonTestsConfig(tests="test", setup="imports", prefix="given", entry_point="function")
    )
    columns = {
        "test": "def check(candidate):\n    assert candidate(4) == 2.0\n",
        "imports": ["import math"],
        "given": "def root(x):\n",
        "function": "root",
    }
    asked = replace(make_prompt("root"), metadata=columns)
    assert reward(asked, "    return math.sqrt(x)\n").total == 1.0
    assert reward(asked, "    return x\n").total == 0.0
    lacking = {**columns, "test": columns["test"].replace("    ", "    import no_such_module; ")}
    with pytest.raises(ValueError, match="ModuleNotFoundError: No module named 'no_such_module'"):
        reward(replace(asked, metadata=lacking), "    return math.sqrt(x)\n")
    with pytest.raises(ValueError, match="no text in column 'given'; columns: function, given"):
        reward(replace(asked, metadata={**columns, "given": None}), "")
    with pytest.raises(ValueError, match="'function' is not the name of a function"):
        reward(replace(asked, metadata={**columns, "function": "a b"}), "")
    reward.close()
    by_reference = PythonTests(PythonTestsConfig())
    in_json = replace(make_prompt("q"), reference='[{"input": "", "output": "1"}]')
    assert by_reference(in_json, "print(1)").total == 1.0
    assert by_reference(replace(in_json, reference="assert x == 1"), "x = 1").total == 1.0
    by_reference.close()
