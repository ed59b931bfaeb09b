"""``--second-chance``: a test that failed runs again at the end, alone, in a fresh process.

If it passes then, it was a flake: it is printed under FLAKY with the text of its first failure and
does not fail the run. Where a file ends, a failure may be due to any of its tests: the whole file
runs again. A run fails if a test fails twice, or if more than ``ALLOWED`` tests failed, none of
which is then tried again. ``RLAX_TEST_FLAKY`` names a file that collects the flakes of several runs
of pytest, which share the allowance.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

ALLOWED = 3
_LIMIT_S = 1800.0  # of one test alone; pytest-timeout ends most of them much earlier
_PASSED = re.compile(r"^=+ [1-9]\d* passed\b.*=$", re.MULTILINE)  # the closing line
_FLAKY = "FLAKY "  # begins the line that names a flake


class SecondChance:
    """The plug-in of the process that collects the reports of all others."""

    def __init__(self) -> None:
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._flaky: list[str] = []
        self._said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not hasattr(report, "wasxfail"):
            self._failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        known = sum(map(len, self._failed.values()))
        if exitstatus != pytest.ExitCode.TESTS_FAILED or known != session.testsfailed:
            return  # all passed, or there is more amiss, such as a file that cannot be imported
        if session.shouldfail or session.shouldstop:
            return  # others were not run
        earlier = flakes()
        if (count := len(earlier) + len(self._failed)) > ALLOWED:
            self._said = f"{count} tests failed, more than {ALLOWED}: none is tried again"
            return
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        failed_twice = []
        for test, reports in self._failed.items():
            arguments = [test]
            if any(report.when == "teardown" for report in reports):
                arguments = [test.partition("::")[0], "-m", session.config.option.markexpr]
            terminal.write_line(f"\nagain, alone: {arguments[0]}")
            if why := _again(arguments, session.config.rootpath):
                failed_twice.append(test)
                terminal.write(why)
            else:
                self._flaky.append(_flake(test, reports))
                _tell_apart(terminal.stats, reports)
        if not failed_twice:
            session.exitstatus = pytest.ExitCode.OK
        if self._flaky and (file := os.environ.get("RLAX_TEST_FLAKY")):
            with Path(file).open("a") as kept:
                kept.write("".join(self._flaky))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._flaky or self._said:
            terminalreporter.section("FLAKY" if self._flaky else "NO SECOND CHANCE")
            terminalreporter.write(self._said or "".join(self._flaky))
            terminalreporter.line("")


def flakes() -> list[str]:
    """The tests that earlier runs of pytest found to be flaky."""
    file = Path(os.environ.get("RLAX_TEST_FLAKY") or os.devnull)
    lines = file.read_text().splitlines() if file.is_file() else []
    return [line.removeprefix(_FLAKY) for line in lines if line.startswith(_FLAKY)]


def _again(arguments: list[str], root: Path) -> str:
    """Why it fails again; empty if it passes, and does not skip either."""
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments]
    with tempfile.TemporaryFile() as out:  # a pipe would be kept open by what a test leaves
        process = subprocess.Popen(
            command,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            passed = process.wait(_LIMIT_S) == pytest.ExitCode.OK
        except subprocess.TimeoutExpired:
            passed = False
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        out.seek(0)
        said = out.read().decode(errors="replace")
    passed &= bool(_PASSED.search(said))  # one that is skipped this time has not passed
    return "" if passed else said or "it ended without a word\n"


def _flake(test: str, reports: list[pytest.TestReport]) -> str:
    texts = [part for report in reports for part in (report.longreprtext, report.capstderr)]
    return f"{_FLAKY}{test}\n" + textwrap.indent("\n".join(texts).rstrip() + "\n", "  ")


def _tell_apart(stats: dict[str, list[object]], reports: list[pytest.TestReport]) -> None:
    """The closing lines count them as flaky, and print no failure again."""
    for kind in ("failed", "error"):
        if kind in stats:
            stats[kind] = [report for report in stats[kind] if report not in reports]
            if not stats[kind]:
                del stats[kind]
    stats.setdefault("flaky", []).append(reports[0])
