"""Marks name exactly one process, which is asked for its stacks."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until

from rlax_plugin.base.liveness.marks import Mark, announced, forget_ended, lives, marks, state
from rlax_plugin.base.liveness.own_stacks import HEADING
from rlax_plugin.tools.commands.doctor.stacks_shown import ask, newest, shortened

ANNOUNCED = """
import ctypes, sys, threading, time
from pathlib import Path
from rlax_plugin.base.liveness.marks import announced
from rlax_plugin.base.liveness.watchdog import Watchdog

def where_it_sleeps():
    time.sleep(600)

def where_it_holds_the_interpreter():
    Path(sys.argv[1], "holds").touch()
    ctypes.PyDLL(None).sleep(600)  # unlike CDLL, it keeps all other threads waiting
    time.sleep(600)

def never_rests():
    while True:
        for n in range(20):
            exec(f"def call(): return [one for one in range({n})]", names := {})
            names["call"]()

does = globals()[sys.argv[2]]
with announced(Path(sys.argv[1]), "worker", "w-1") as mark, Watchdog(mark, 1.0):
    for _ in range(3 if does is never_rests else 0):
        threading.Thread(target=never_rests, daemon=True).start()
    does()
"""


@contextmanager
def child(program: str, *arguments: str, passes: int = 2) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, pass_fds=(passes,)
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


@contextmanager
def announced_child(directory: Path, does: str) -> Iterator[Mark]:
    """The mark of a process that does one thing all the time."""
    with child(ANNOUNCED, str(directory), does) as process:
        (mark,) = wait_until(lambda: marks(directory), "the mark")
        assert mark.pid == process.pid
        yield mark


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Mark]]:
    """A process that has left its mark, and the state directory."""
    directory = tmp_path_factory.mktemp("run")
    with announced_child(directory, "where_it_sleeps") as mark:
        yield directory, mark


def test_a_process_writes_where_it_is(living: tuple[Path, Mark]) -> None:
    directory, mark = living
    assert (mark.role, mark.name, mark.log) == ("worker", "w-1", directory / "logs/w-1.log")
    assert mark.who == f"worker w-1 (pid {mark.pid})" and lives(mark)
    stacks = ask([mark], 60)[mark]
    assert "where_it_sleeps" in stacks and "most recent call first" in stacks
    assert f"{HEADING}requested" in stacks and not mark.request.exists()
    again = ask([mark], 60)[mark]
    assert again.count("where_it_sleeps") == 1  # not those of the first time as well
    assert "where_it_sleeps" in newest(mark)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (directory / "processes").iterdir()}
    assert modes[f"{mark.pid}.stacks"] == 0o600
    assert (directory / "processes").stat().st_mode & 0o777 == 0o700


def test_a_process_that_does_not_answer_is_left_to_py_spy(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    with (
        announced_child(tmp_path, "where_it_holds_the_interpreter") as silent,
        announced_child(tmp_path / "others", "where_it_sleeps") as mark,
    ):
        wait_until((tmp_path / "holds").exists, "the hold")
        stacks = ask([silent, mark], 1)
        assert shortened(stacks[silent], {}) == [
            "it has written no stacks within 1 s: the machine is overloaded, it waits for a disk, "
            "or its code holds Python's interpreter lock",
            f"py-spy dump --pid {silent.pid} shows where it is (pip install py-spy; it may need "
            "root)",
        ]
        assert "where_it_sleeps" in ask([mark], 60)[mark]
        assert lives(silent) and not silent.request.exists()


def test_a_long_file_of_stacks_is_emptied(living: tuple[Path, Mark]) -> None:
    _, mark = living
    with mark.stacks.open("ab") as file:
        file.write(b"x" * (5 << 20))
    stacks = ask([mark], 60)[mark]
    assert "where_it_sleeps" in stacks and "x" * 80 not in stacks
    assert mark.stacks.stat().st_size < 1 << 16


def test_a_process_whose_threads_run_survives_questions_and_stops(tmp_path: Path) -> None:
    with announced_child(tmp_path, "never_rests") as mark:
        assert ask([mark], 60)[mark].count("never_rests") >= 4
        os.kill(mark.pid, signal.SIGSTOP)
        time.sleep(1.5)  # longer than its watchdog's limit
        os.kill(mark.pid, signal.SIGCONT)
        assert "never_rests" in ask([mark], 60)[mark] and lives(mark)


def test_a_stopped_process_is_not_waited_for(living: tuple[Path, Mark]) -> None:
    _, mark = living
    os.kill(mark.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: state(mark.pid) == "T", "the stop")
        assert ask([mark], 60)[mark] == f"it is stopped: kill -CONT {mark.pid} continues it"
    finally:
        os.kill(mark.pid, signal.SIGCONT)


def test_another_process_with_the_pid_is_not_asked(living: tuple[Path, Mark]) -> None:
    _, mark = living
    for another in (
        replace(mark, start=1),
        replace(mark, boot="another"),
        replace(mark, pid=2**30),
    ):
        assert not lives(another) and ask([another], 1) == {another: "it has ended"}


def test_what_is_no_mark_is_left_out(tmp_path: Path) -> None:
    with announced(tmp_path, "trainer") as mine:
        assert mine is not None
        (good,) = marks(tmp_path)
        folder = tmp_path / "processes"
        said = json.loads((folder / f"{os.getpid()}.json").read_text())
        for number, wrong in enumerate(
            (
                *({"pid": "1"}, {"pid": -1}, {"role": "king"}, {"still": 3}, {"name": None}),
                *({"name": "../../x"}, {"still": [["a", 10**400]]}),
                *({"still": [["a", one]]} for one in (float("nan"), -float("inf"), 1e300)),
                *({"pid": 10**30}, {"start": 10**30}),
            )
        ):
            (folder / f"{number}.json").write_text(json.dumps(said | wrong))
        (folder / "text.json").write_text("nothing")
        (folder / "list.json").write_text("[]")
        (folder / "deep.json").write_text("[" * 60_000)
        (folder / "link.json").symlink_to(folder / f"{os.getpid()}.json")
        os.mkfifo(folder / "pipe.json")
        assert marks(tmp_path) == [good] == [mine.mark]
    assert list(folder.glob("*.stacks")) == [] and marks(tmp_path) == []


def test_marks_of_killed_processes_are_forgotten_by_the_next_one(tmp_path: Path) -> None:
    with child(ANNOUNCED, str(tmp_path), "where_it_sleeps") as process:
        wait_until(lambda: marks(tmp_path), "the mark")
        forget_ended(tmp_path)
        assert len(marks(tmp_path)) == 1
        process.kill()
        process.wait(60)
        assert len(marks(tmp_path)) == 1 and not lives(marks(tmp_path)[0])
        forget_ended(tmp_path)
    assert list((tmp_path / "processes").iterdir()) == []


def test_a_process_forgets_its_predecessors_only(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = tmp_path / "processes"
    with announced(tmp_path, "worker", "a") as mine:
        assert mine is not None
        for number, name in enumerate(("a", "b")):
            pid = ended.pid + number * 10**6
            other = dataclasses.asdict(mine.mark) | {"pid": pid, "name": name, "start": 1}
            (folder / f"{pid}.json").write_text(json.dumps(other))
        assert len(marks(tmp_path)) == 3
        with announced(tmp_path, "worker", "a"):
            left = {(one.name, lives(one)) for one in marks(tmp_path)}
            assert left == {("a", True), ("b", False)}


def test_a_directory_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "processes").write_text("a file")
    with announced(tmp_path, "trainer") as mine:
        assert mine is None
