"""Measures the sandbox: tests per second, on all cores and on one, and the time of a start.

    .venv/bin/python benchmarks/sandbox.py

A piece of code is a program that prints a number. The test of a function needs two processes, as
``python_tests`` runs it: one for the code, one for the test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from rlax_code import PythonTests, PythonTestsConfig

from rlax_plugin.sandbox.layers import offered
from rlax_plugin.sandbox.sandbox import Sandbox
from rlax_plugin.testing import make_prompt

ADD = "def add(a, b):\n    return a + b\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="of each kind, per process")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--one", choices=("program", "assert"), help="measure in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(_seconds(arguments.one, arguments.count))
        return
    began_s = time.perf_counter()
    offer = offered()
    print(f"layers tried in {time.perf_counter() - began_s:.2f} s, missing: {list(offer.missing)}")
    began_s = time.perf_counter()
    with Sandbox(allow_weak=True) as sandbox:
        sandbox.run("pass")
        print(f"start and first piece: {time.perf_counter() - began_s:.2f} s")
    for kind in ("program", "assert"):
        for processes in dict.fromkeys((1, arguments.processes)):
            command = [sys.executable, __file__, "--one", kind, "--count", str(arguments.count)]
            running = [
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                for _ in range(processes)
            ]
            took_s = [float(one.communicate()[0]) for one in running]
            rate = sum(arguments.count / one for one in took_s)
            print(f"{kind}, {processes} process(es): {rate:.0f} tests/s")


def _seconds(kind: str, count: int) -> float:
    """Returns the seconds for ``count`` tests after the first one."""
    reward = PythonTests(PythonTestsConfig(allow_weak=True, max_tests=count, sample_s=600))
    test = {"program": {"input": "1 2", "output": "3"}, "assert": "assert add(1, 2) == 3"}[kind]
    code = {"program": "print(sum(map(int, input().split())))", "assert": ADD}[kind]

    def score(tests: int) -> float:
        return reward(replace(make_prompt("add"), metadata={"tests": [test] * tests}), code).total

    try:
        return _timed(score, count)
    finally:
        reward.close()


def _timed(score: Callable[[int], float], count: int) -> float:
    assert score(1) == 1.0
    began_s = time.perf_counter()
    assert score(count) == 1.0
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
