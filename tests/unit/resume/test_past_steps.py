"""A resume reads the metrics since its snapshot, and has the sums of all steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rlax_plugin.metrics.file import MetricsFile
from rlax_plugin.metrics.run_stats import RunStats
from rlax_plugin.records.files import RunFiles
from rlax_plugin.resume.past_steps import past_steps, saved

KEPT = {"gap": 30}
PERIOD = 10  # steps between checkpoints
NAMES = [f"stage/{number}" for number in range(60)]


def metrics_of(step: int) -> dict[str, float]:
    chance = random.Random(step)
    found = {name: chance.uniform(-1, 1) for name in NAMES}
    return found | ({"gap": float("nan") if step % 9 == 0 else 0.1} if step % 3 == 0 else {})


class Run:
    """A run on a directory, up to a step; with what its snapshots would have."""

    def __init__(self, directory: Path, steps: int):
        self.directory, self.snapshots = directory, dict[int, dict[str, Any]]()
        self.stats, self.file = RunStats(KEPT), MetricsFile(RunFiles(directory), directory)
        self.file.rewind(0)
        self.go_on(1, steps)

    def go_on(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            if step % PERIOD == 0 and step > last - 3 * PERIOD:  # before its step ends
                self.snapshots[step] = json.loads(json.dumps(saved(self.stats, self.file)))
            self.file.add(step, metrics_of(step))
            self.stats.add(metrics_of(step))

    def resumed(self, step: int, earlier: dict[str, Any] | None = None) -> RunStats:
        """Goes on in a new process; the sums are those of ``step``."""
        self.file.close()
        self.file = MetricsFile(RunFiles(self.directory), self.directory)
        known = self.snapshots[step] if earlier is None else earlier
        past = past_steps(step, known, self.file, KEPT, {"unfinished": 1.0})
        self.stats = RunStats(KEPT)
        self.stats.begin_after(past.stats)
        return self.stats

    @property
    def lines(self) -> list[str]:
        return (self.directory / "metrics.jsonl").read_text().splitlines()


def whole(steps: int) -> RunStats:
    stats = RunStats(KEPT)
    for step in range(1, steps + 1):
        stats.add(metrics_of(step))
    return stats


def same(found: RunStats, expected: RunStats) -> bool:
    return json.dumps(found.state()) == json.dumps(expected.state())  # NaN is NaN


class Read(NamedTuple):
    """Counts the bytes that are read from files."""

    amounts: list[int]

    def whole(self, of: Callable[..., bytes]) -> Callable[..., bytes]:
        def counted(*arguments: Any) -> bytes:
            self.amounts.append(len(data := of(*arguments)))
            return data

        return counted

    def opened(self, of: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **more: Any) -> Any:
            file = of(*arguments, **more)
            if "r" not in (arguments[1] if len(arguments) > 1 else more.get("mode", "r")):
                return file
            return _Counting(file, self.whole(file.read))

        return counting


class _Counting:
    def __init__(self, file: Any, read: Callable[..., bytes]):
        self._file, self.read, self.seek = file, read, file.seek

    def __enter__(self) -> _Counting:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    read = Read([])
    monkeypatch.setattr(Path, "open", read.opened(Path.open))
    monkeypatch.setattr(RunFiles, "get", read.whole(RunFiles.get))
    yield read


def test_bytes_do_not_grow_with_history(tmp_path: Path, bytes_read: Read) -> None:
    amounts, sums = [], []
    for steps in (100, 10_000):
        (directory := tmp_path / str(steps)).mkdir()
        run = Run(directory, steps + PERIOD - 1)
        bytes_read.amounts.clear()
        found = run.resumed(steps)
        amounts.append(sum(bytes_read.amounts))
        period = sum(len(line) + 1 for line in run.lines[-PERIOD:])
        assert 0 < amounts[-1] <= (PERIOD + 1) / PERIOD * 1.05 * period
        assert found.steps == found.earlier == steps and len(run.lines) == steps
        assert same(found, whole(steps))
        sums.append(len(json.dumps(run.snapshots[steps])))
        run.file.close()
    assert amounts[1] == pytest.approx(amounts[0], rel=0.02)
    assert sums[1] == pytest.approx(sums[0], rel=0.02)


def test_it_goes_on_and_resumes_again(tmp_path: Path) -> None:
    run = Run(tmp_path, 35)
    run.resumed(30)
    run.go_on(31, 45)
    assert same(run.resumed(40), whole(40))
    assert [json.loads(line)["step"] for line in run.lines] == list(range(1, 41))
    assert same(run.resumed(30), whole(30))  # as the newer checkpoint cannot be read


def test_a_process_killed_before_its_step_has_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, 29)
    run.snapshots[30] = saved(run.stats, run.file)
    expected = whole(29)
    expected.add({"unfinished": 1.0})
    assert same(run.resumed(30), expected)
    assert json.loads(run.lines[-1]) == {"step": 30, "unfinished": 1.0}
    assert same(run.resumed(30), expected)  # its line is there now


def damaged(run: Run) -> None:
    path = run.directory / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[28] = b"x" + lines[28][1:]
    path.write_bytes(b"\n".join(lines))


def other(run: Run) -> None:
    """The file of a process that went on from an earlier checkpoint, on another machine."""
    path = run.directory / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:25]))


def without(run: Run) -> None:
    run.snapshots[30] = {}


def fewer(run: Run) -> None:
    run.snapshots[30]["sums"]["kept"] = {}


@pytest.mark.parametrize("change", [damaged, other, without, fewer])
def test_otherwise_the_whole_file_is_read(change: Callable[[Run], None], tmp_path: Path) -> None:
    run = Run(tmp_path, 35)
    run.file.close()
    change(run)
    found = run.resumed(30)
    expected = RunStats(KEPT)
    steps = [*range(1, 31)]
    if change is damaged:
        steps.remove(29)
    elif change is other:
        steps = steps[:25]
    for step in steps:
        expected.add(metrics_of(step))
    if change is other:
        expected.add({"unfinished": 1.0})
    assert same(found, expected)
    assert [json.loads(line)["step"] for line in run.lines] == sorted({*steps, 30})


def test_a_torn_line_is_cut(tmp_path: Path) -> None:
    run = Run(tmp_path, 35)
    run.file.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 36, "sta')
    assert same(run.resumed(30), whole(30))
    assert len(run.lines) == 30


def test_a_snapshot_after_the_end_of_its_step_counts_this_step_once(tmp_path: Path) -> None:
    """A signal has the checkpoint of a step saved when its metrics are recorded already."""
    run = Run(tmp_path, 20)
    stats = run.resumed(20, json.loads(json.dumps(saved(run.stats, run.file))))
    assert len(run.lines) == 20 and same(stats, whole(20))


def test_steps_without_a_line_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, 20)
    (tmp_path / "metrics.jsonl").write_text("\n".join(run.lines[:4] + run.lines[11:19]) + "\n")
    run.resumed(20)
    assert caplog.messages == [
        "metrics.jsonl: 7 of 19 steps have no line (step 5, 6, 7, 8, 9, ...)"
    ]
    run.file.close()
