"""A second chance for what failed, and tests that leave something: pytest runs planted tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

FLAKY = """
import pathlib, pytest

@pytest.mark.parametrize("which", range({count}))
def test_flaky(which, capsys):
    tried = pathlib.Path(f"tried{{which}}")
    if not tried.exists():
        tried.touch()
        assert "the first failure" == "says this"
"""
CRASHES = """
import os, pathlib, signal

def test_crashes():
    tried = pathlib.Path("crashed")
    if not tried.exists():
        tried.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
FINE = "\ndef test_fine():\n    pass\n"
SKIPS = """
import pathlib, pytest

def test_skips_the_second_time():
    tried = pathlib.Path("skipped")
    if tried.exists():
        pytest.skip("not here")
    tried.touch()
    assert False
"""
ENDS_BADLY = """
import pytest

@pytest.fixture(scope="module")
def shared():
    yield
    assert False, "its end fails"

def test_uses_it(shared):
    pass

def test_is_the_last_of_the_file():
    pass
"""


class Planted:
    """A folder with tests, under the project's own conftest."""

    def __init__(self, folder: Path):
        self._folder = folder
        shutil.copy(ROOT / "pyproject.toml", folder)
        (folder / "tests/unit").mkdir(parents=True)
        shutil.copy(ROOT / "tests/conftest.py", folder / "tests")
        shutil.copytree(ROOT / "tests/helpers", folder / "tests/helpers")
        for name in ("rlax_plugin", "plugins", "maxtext_overrides"):
            (folder / name).mkdir()  # nothing to compile

    def run(self, *tests: str, flakes: Path | None = None) -> tuple[int, str]:
        """Exit status and output of ``make test``'s way to call pytest, on these files of tests."""
        for number, text in enumerate(tests):
            (self._folder / f"tests/unit/test_{number}.py").write_text(text)
        words = ["--numprocesses", "2", "--dist", "loadfile", "--second-chance"]
        of_this_run = ("PYTEST_XDIST", "RLAX_TEST")
        plain = {k: v for k, v in os.environ.items() if not k.startswith(of_this_run)}
        plain["TMPDIR"] = str(self._folder)  # a worker that is killed leaves files
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, "tests/unit"],
            cwd=self._folder,
            env=plain | ({"RLAX_TEST_FLAKY": str(flakes)} if flakes else {}),
            capture_output=True,
            text=True,
            timeout=280,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path)


def test_flakes_are_printed_and_do_not_fail_the_run(planted: Planted, tmp_path: Path) -> None:
    """A process that died is a first failure, too."""
    flakes = tmp_path / "flakes"
    status, out = planted.run(FLAKY.format(count=2), CRASHES, FINE, flakes=flakes)
    assert status == 0, out
    assert "FAILURES" not in out and re.search(r"=+ [1-3] passed, 3 flaky in", out), out
    _, _, printed = out.partition("= FLAKY =")
    for test in ("test_0.py::test_flaky[0]", "test_0.py::test_flaky[1]", "test_1.py::test_crashes"):
        assert f"FLAKY tests/unit/{test}\n" in printed
    assert printed.count("AssertionError: assert 'the first failure' == 'says this'") >= 2
    assert flakes.read_text().count("FLAKY ") == 3 and "says this" in flakes.read_text()


@pytest.mark.ci
def test_only_what_passes_alone_is_a_flake(planted: Planted) -> None:
    """Not what is skipped then, nor what fails again where its file ends."""
    status, out = planted.run(FLAKY.format(count=1), SKIPS, ENDS_BADLY)
    assert status == 1, out
    assert out.count("\nFLAKY ") == 1 and "FLAKY tests/unit/test_0.py::test_flaky[0]\n" in out
    assert re.search(r"=+ 1 failed, 2 passed, 1 error, 1 flaky in", out), out


def test_more_than_three_are_not_tried_again(planted: Planted, tmp_path: Path) -> None:
    """Those of an earlier run of pytest count, if both belong together."""
    flakes = tmp_path / "flakes"
    flakes.write_text("FLAKY tests/a.py::test_a\n  FLAKY as a failure says\nFLAKY tests/b.py::b\n")
    status, out = planted.run(FLAKY.format(count=2), flakes=flakes)
    assert status == 1 and "4 tests failed, more than 3: none is tried again" in out, out
    assert re.search(r"=+ 2 failed in", out), out


LEAVES = """
import pathlib, subprocess, sys, tempfile, threading, time
import leftovers

leftovers._GRACE_S = 0.5
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

def test_begins_a_process():
    subprocess.Popen(SLEEP)

def test_begins_one_whose_parent_ends():
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({SLEEP})"])

def test_makes_a_file_and_a_thread():
    pathlib.Path(tempfile.mkdtemp(prefix="left-")).touch()
    threading.Thread(target=time.sleep, args=(2,), name="left-behind").start()

def test_ends_all_that_it_began():
    process = subprocess.Popen(SLEEP)
    process.kill()
    process.wait(60)

def test_is_the_last():
    pass
"""


def test_what_a_test_leaves_is_named_with_it(planted: Planted) -> None:
    """Beside a file that cannot be imported nothing is tried again, and the run fails."""
    status, out = planted.run(LEAVES, "import nothing_of_that_name")
    assert status not in (0, 5) and "nothing_of_that_name" in out and "again, alone" not in out, out
    left = re.findall(r"left: (process|<Thread|'/)(.*) of tests/unit/test_0.py::(\w+)", out)
    assert sorted({(kind, test) for kind, _, test in left}) == [
        ("'/", "test_makes_a_file_and_a_thread"),
        ("<Thread", "test_makes_a_file_and_a_thread"),
        ("process", "test_begins_a_process"),
        ("process", "test_begins_one_whose_parent_ends"),
    ], out
    assert "left-behind" in out and "time.sleep(600)" in out
