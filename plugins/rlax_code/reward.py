"""The reward ``python_tests``."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import Field

from rlax_code.cases import Case, Dialogue, Statements, cases_of
from rlax_code.evaluating import executing
from rlax_code.inside import BROKEN, RIGHT
from rlax_code.needed_names import given
from rlax_plugin.api import (
    Ended,
    Ending,
    Limits,
    PositiveInt,
    Prompt,
    Reward,
    Sandbox,
    Score,
    Seconds,
    Section,
    one_line,
)

_MIB = 1 << 20
_PROCESSES = 16  # and threads of one test at a time
_LONGEST = 1 << 20  # characters of code
_JUDGE_MORE_S = 1.0  # the testing process sees the end of the code, and says so


class PythonTestsConfig(Section):
    """Runs the code of a completion against the prompt's tests, in a sandbox."""

    tests: str = Field(
        "tests",
        description="column of the prompt's metadata with the tests; where it is missing, the "
        "reference has them",
    )
    setup: str = Field(
        "", description="column with Python that runs before the code and before each test"
    )
    prefix: str = Field(
        "",
        description="column with code that the completion continues, such as a signature. Its "
        "imports, variables and complete functions are the tests' as well, and the code cannot "
        "redefine them for the tests",
    )
    entry_point: str = Field(
        "",
        description="column with the name of the function that `check(...)` of the tests is called "
        "with, as in HumanEval. The tests then have nothing else from the code, except what "
        "`prefix` leaves to it",
    )
    code: Literal["block", "whole"] = Field(
        "block",
        description="block: the last fenced block of Python, or the whole completion if there is "
        "none; whole: always the whole completion",
    )
    reward: Literal["all", "share"] = Field(
        "all", description="all: 1 if every test holds, otherwise 0; share: the share that holds"
    )
    max_tests: PositiveInt = Field(
        default=32, description="number of tests that are used, the first ones"
    )
    test_s: Seconds = Field(default=2.0, description="limit for one test")
    sample_s: Seconds = Field(
        default=8.0,
        description="limit for all tests of one completion: those for which no time is left fail. "
        "Must be below `rlax.deadlines.reward_s`",
    )
    memory_mib: Annotated[int, Field(ge=64, le=1 << 20)] = Field(
        256, description="memory of one test with all its processes, MiB"
    )
    allow_weak: bool = Field(
        False,
        description="run even if this machine lacks layers of the sandbox, which `rlax check` "
        "names: then code of the model may do harm",
    )


@dataclass(frozen=True, slots=True)
class _Program:
    """The tested code with its context.

    Attributes:
      setup: Python that runs before the code and before each test.
      prefix: the part of the code that the prompt contains.
      code: the prefix, continued by the completion.
    """

    setup: str
    prefix: str
    code: str


class PythonTests(Reward):
    """1 if the code of a completion passes the prompt's tests, or the share that it passes.

    Each test runs the code in a fresh process. A test that is an input and an expected output runs
    the code as a program, and its output is compared here. A test that is Python, such as
    ``assert f(2) == 4``, runs in another sandbox than the code: a call of the code is a message,
    and its result comes back as plain data. So the code cannot forge a verdict by ending its
    process, by replacing builtins or ``assert``, by objects that equal everything, or by printing:
    it can only answer. Names that the tests, the setup, the prefix or Python define are never taken
    from the code, except for classes of the prefix and the function that is continued; and if the
    data names the tested function, the code supplies no other one.

    Remaining limits: code may find out from its arguments which test it is in, and answer from a
    list; no sandbox can tell. A test that calls nothing always passes. Arguments are copies, so a
    test of what a function does to its argument fails. A test can pass plain data only (numbers,
    texts, bytes, times, lists, tuples, sets, dicts), objects that the code made, and functions of
    Python, the setup or the prefix. A test that passes anything else, or is not Python, raises a
    ValueError, and the sample is unscored. docs/sandbox.md has the whole list.
    """

    def __init__(self, config: PythonTestsConfig):
        self._config = config
        self._limits = Limits(
            wall_s=config.test_s,
            cpu_s=max(1, round(config.test_s + 0.5)),
            memory_bytes=config.memory_mib * _MIB,
            processes=_PROCESSES,
        )
        self._code: Sandbox | None = None
        self._judge: Sandbox | None = None

    def __call__(self, prompt: Prompt, completion: str) -> Score:
        """Scores one completion. Its metrics are ``tests_passed``, a share, and ``tests_late``.

        Raises:
          ValueError: the prompt has no tests, or one that cannot be used or may execute what the
            code returns.
          SandboxError: a sandbox could not be started, or was ended from outside.
        """
        config = self._config
        cases = cases_of(prompt, config.tests, config.entry_point)[: config.max_tests]
        setup = _column(prompt, config.setup)
        code = code_of(completion) if config.code == "block" else completion
        prefix = _column(prompt, config.prefix)
        _check_executing(prompt, cases, setup, prefix)
        passed, late, ending = 0, 0, None
        if len(prefix) + len(code) <= _LONGEST:
            program = _Program(setup, prefix, f"{prefix}{code}")
            passed, late, ending = self._tried(prompt, cases, program)
        share = passed / len(cases)
        total = share if config.reward == "share" else float(share == 1)
        metrics = {"tests_passed": share, "tests_late": late / len(cases)}
        return Score(total, metrics=metrics, ending=ending)

    def _tried(
        self, prompt: Prompt, cases: list[Case], program: _Program
    ) -> tuple[int, int, Ending | None]:
        """Returns how many tests pass, how many take too long, and how the first such test ends."""
        # Their start is no time of the code; it may take 20 s where the machine is loaded.
        self._sandbox_of_code().start()
        if any(isinstance(case, Statements) for case in cases):
            self._sandbox_of_tests().start()
        end = time.monotonic() + self._config.sample_s
        passed = late = 0
        ending: Ending | None = None
        for number, case in enumerate(cases):
            if time.monotonic() + self._config.test_s > end:
                return passed, late + len(cases) - number, ending or Ending.OVER_TIME
            if isinstance(case, Dialogue):
                holds, ended = self._printed(case, program)
            else:
                holds, ended = self._judged(prompt, number, case, program)
            passed += holds
            if not holds:
                ending = ending or ended.ending
            late += not holds and ended.why == "time"
            if not holds and self._config.reward == "all":
                break
        return passed, late, ending

    def _printed(self, case: Dialogue, program: _Program) -> tuple[bool, Ended]:
        code = f"{program.setup}\n{program.code}" if program.setup else program.code
        ended = self._sandbox_of_code().run(code, case.given.encode(errors="replace"))
        return ended.right and case.holds(ended.stdout.decode(errors="replace")), ended

    def _judged(
        self, prompt: Prompt, number: int, case: Statements, program: _Program
    ) -> tuple[bool, Ended]:
        tests = self._sandbox_of_tests()
        tests.start()  # or the time of the code would run while this one is started
        ours, theirs = socket.socketpair()
        with ours, theirs:
            serve = _call("serve", program.setup, program.code)
            answering = self._sandbox_of_code().begin(serve, channel=ours)
            try:
                judge = _call("judge", program.setup, program.prefix, case.entry, case.text)
                verdict = tests.run(judge, channel=theirs)
            finally:
                ended = answering.stop()
        if verdict.why == "exited" and verdict.code == BROKEN:
            said = verdict.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise ValueError(
                f"test {number + 1} of prompt {prompt.id} cannot be used: {one_line(said, 300)}"
            )
        holds = verdict.why == "exited" and verdict.code == RIGHT
        # Code that only waited, or ended with its tests, says nothing of what ended these.
        by_tests = verdict.why != "exited" and ended.ending is None
        return holds, verdict if by_tests else ended

    def _sandbox_of_code(self) -> Sandbox:
        if self._code is None:
            self._code = Sandbox(
                self._limits, prelude=_prelude(), allow_weak=self._config.allow_weak
            )
        return self._code

    def _sandbox_of_tests(self) -> Sandbox:
        if self._judge is None:
            limits = Limits(
                wall_s=self._config.test_s + _JUDGE_MORE_S,
                cpu_s=self._limits.cpu_s + 1,
                memory_bytes=self._limits.memory_bytes,
                processes=self._limits.processes,
            )
            self._judge = Sandbox(limits, prelude=_prelude(), allow_weak=self._config.allow_weak)
        return self._judge

    def close(self) -> None:
        """Ends both sandboxes."""
        for one in (self._code, self._judge):
            if one is not None:
                one.close()
        self._code = self._judge = None


# The sandbox takes one text, and these modules import each other.
_LOADING = """
import sys, types
sys.modules["rlax_code"] = types.ModuleType("rlax_code")
for name, text in {0!a}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)
from rlax_code.inside import judge, serve
"""


def _check_executing(prompt: Prompt, cases: list[Case], setup: str, prefix: str) -> None:
    """Checks that no test executes what the code returns, as the code could then end the test.

    Raises:
      ValueError: one does; names the prompt, the test and the line.
    """
    tests = {n: one for n, one in enumerate(cases, 1) if isinstance(one, Statements)}
    entry = next((one.entry for one in tests.values()), "")
    texts = {"the setup": setup, "the prefix": given(prefix, entry)[0]}
    texts |= {f"test {number}": one.text for number, one in tests.items()}
    if found := executing(tuple(texts.values())):
        place, line, name = found
        raise ValueError(
            f"{list(texts)[place]} of prompt {prompt.id} cannot be used: line {line} has {name}, "
            "which may execute what the code returns, so that the code could end the test as one "
            "that passes; compare values instead, or read them with ast.literal_eval"
        )


def _prelude() -> str:
    source = files("rlax_code")
    texts = {
        f"rlax_code.{name}": source.joinpath(f"{name}.py").read_text()
        for name in ("plain", "needed_names", "inside")
    }
    return _LOADING.format(texts)


def _call(function: str, *arguments: str) -> str:
    return f"import prelude\nprelude.{function}({', '.join(map(ascii, arguments))})"


def _column(prompt: Prompt, name: str) -> str:
    """Returns the text of a column; empty if no column is named.

    Raises:
      ValueError: the prompt has no such text.
    """
    if not name:
        return ""
    found = prompt.metadata.get(name)
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return "\n".join(found)
    if not isinstance(found, str):
        there = ", ".join(sorted(prompt.metadata)) or "none"
        raise ValueError(f"prompt {prompt.id} has no text in column {name!r}; columns: {there}")
    return found


_LANGUAGES = ("", "py", "python", "python3")
# Possessive: a line of 3,000 tildes and a backtick would be tried for minutes otherwise.
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$", re.MULTILINE)


def code_of(completion: str) -> str:
    """Returns the last fenced block that is marked as Python, or not marked at all.

    A block begins with a line of three or more backticks or tildes, and ends with a line of at
    least as many; an unclosed block reaches to the end. If there is no such block, the whole
    completion is taken as code, since some models answer that way. Blocks of other languages do not
    count.
    """
    found: str | None = None
    opened: tuple[str, int] | None = None  # the fence, and where its block begins
    python = False
    for match in _FENCE.finditer(completion):
        fence, language = match[1], match[2]
        if opened is None:
            opened, python = (fence, match.end() + 1), language.lower() in _LANGUAGES
        elif fence[0] == opened[0][0] and len(fence) >= len(opened[0]) and not language:
            if python:
                found = completion[opened[1] : match.start()]
            opened = None
    if opened is not None and python:
        found = completion[opened[1] :]
    return completion if found is None else found
