"""A resume from damaged records: it stops and says what to do, or does not need them."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from flow_harness import Harness, settle

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.journal import JournalError
from rlax_plugin.run.state.snapshots import rates_name, snapshot_name
from rlax_plugin.tools.commands.audit import audit


async def _trained(run: Harness, steps: range) -> None:
    for step in steps:
        await settle()
        for group in sorted(run.answers.open):
            await run.answers.answer(group, step - 1, rewards=[0.0, 1.0])
        await run.flow.batch(step)
        run.publish(step)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run killed after step 7: segments 1 to 3, its checkpoint with segment 4, and 5 to 8."""

    async def train() -> None:
        run = Harness(tmp_path)
        await run.start()
        await _trained(run, range(1, 4))
        await run.checkpoint(3)
        await _trained(run, range(4, 8))
        run.recorder.close()

    asyncio.run(train())
    assert journal.last_number(RunFiles(tmp_path)) == 8
    return tmp_path


def resumed(directory: Path, until: int = 8, after: int = 3) -> int | None:
    """Resumes from a step and trains on; returns the last step whose batch was recorded."""

    async def train() -> int | None:
        run = Harness(directory, step=after)
        run.checkpoints = {3: "3.npz"} if after == 3 else {3: "3.npz", after: f"{after}.npz"}
        try:
            recovery = await run.start()
            for step in range(after + 1, until + 1):
                if recovery.holds(step):
                    await run.flow.batch(step)
                    run.publish(step)
                else:
                    await _trained(run, range(step, step + 1))
            return recovery.last_step
        finally:
            run.recorder.close()

    return asyncio.run(train())


def segment(directory: Path, number: int) -> Path:
    return directory / journal.segment_name(number)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def another_token(path: Path) -> None:
    """Changes one digit of a segment's events; it is JSON, and its events make sense."""
    data = path.read_bytes()
    assert b'"tokens":' in data
    path.write_bytes(data.replace(b'"tokens":', b'"tokens":1', 1))


DAMAGES = (cut, another_token, Path.unlink)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment_before_the_last_stops_a_resume(
    killed: Path, damage: Callable[[Path], None]
) -> None:
    damage(segment(killed, 5))
    before = {path: path.read_bytes() for path in killed.glob("*/*/*")}
    with pytest.raises(JournalError, match=r"^journal segment 5: .*Bring the file back"):
        resumed(killed)
    assert {path: path.read_bytes() for path in killed.glob("*/*/*")} == before


@pytest.mark.parametrize("number", [5, 7])
def test_a_damaged_file_of_samples_stops_a_resume_before_its_step(
    killed: Path, number: int
) -> None:
    cut(killed / journal.samples_name(number))
    name = f"samples/00000/{number:08d}.parquet"
    with pytest.raises(JournalError, match=f"^journal segment {number}: {name} .*Bring the file"):
        resumed(killed)
    assert resumed(killed, until=number - 2) == 7  # the steps before it train again


@pytest.mark.parametrize("damaged", [segment, lambda run, n: run / journal.samples_name(n)])
def test_a_run_goes_on_without_the_segments_that_the_error_names(
    killed: Path, damaged: Callable[[Path, int], Path]
) -> None:
    cut(damaged(killed, 6))
    with pytest.raises(JournalError) as caught:
        resumed(killed)
    named = str(segment(killed, 6))
    assert f"remove {named} and all segments with higher numbers" in str(caught.value)
    for number in (6, 7, 8):
        segment(killed, number).unlink()
    assert resumed(killed) == 4  # and steps 5 to 8 are generated again
    report = audit(RunFiles(killed))
    assert report.clean and report.figures.steps == 8


@pytest.mark.parametrize("name", [journal.segment_name(8), journal.samples_name(8)])
def test_damaged_last_segment_does_not_count(killed: Path, name: str) -> None:
    damage = another_token if name.startswith("journal") else cut
    damage(killed / name)
    assert resumed(killed) == 6
    assert audit(RunFiles(killed)).clean


def another_digit(path: Path) -> None:
    """Changes one digit of a snapshot's run state; it is JSON."""
    data = path.read_bytes()
    assert b'"next_step": ' in data
    path.write_bytes(data.replace(b'"next_step": ', b'"next_step": 1', 1))


@pytest.mark.parametrize("name", [snapshot_name(7), rates_name(7)])
@pytest.mark.parametrize("damage", [cut, another_digit, Path.unlink])
def test_a_damaged_snapshot_names_the_checkpoint_to_move(
    killed: Path, name: str, damage: Callable[[Path], None]
) -> None:
    async def save() -> None:
        run = Harness(killed, step=3)
        recovery = await run.start()
        for step in range(4, 8):
            assert recovery.holds(step)
            await run.flow.batch(step)
            run.publish(step)
        await run.checkpoint(7)
        run.recorder.close()

    asyncio.run(save())
    (cut if damage is another_digit and name != snapshot_name(7) else damage)(killed / name)
    with pytest.raises(TrainingError) as caught:
        resumed(killed, until=9, after=7)
    assert str(killed / name) in str(caught.value)
    assert f"move {killed}/checkpoints/7.npz out of that directory" in str(caught.value)
    assert str(caught.value).endswith("the same command continues from the checkpoint of step 3")
    if name == snapshot_name(7) and damage is not Path.unlink:
        report = audit(RunFiles(killed))
        assert report.violation is not None and f"{name} is damaged" in report.violation.message
    assert resumed(killed, until=9) == 7  # as it does once the checkpoint is moved
    (killed / name).unlink(missing_ok=True)
    (killed / snapshot_name(7)).unlink(missing_ok=True)
    assert audit(RunFiles(killed)).clean


def test_without_an_older_checkpoint_a_run_begins_again(killed: Path) -> None:
    cut(killed / snapshot_name(3))
    with pytest.raises(TrainingError, match=r"continues from its first weights$"):
        resumed(killed)
    (killed / snapshot_name(3)).unlink()
    assert resumed(killed, after=0) == 7  # all its batches are recorded
    assert audit(RunFiles(killed)).clean


@pytest.mark.parametrize("ledger", ["there", "lost"])
def test_records_before_the_snapshot_are_not_needed(killed: Path, ledger: str, caplog) -> None:
    caplog.set_level(logging.WARNING, "rlax.controller")
    cut(segment(killed, 2))
    cut(killed / journal.samples_name(3))
    if ledger == "lost":
        for path in killed.glob("ledger.sqlite*"):
            path.unlink()
    assert resumed(killed) == 7
    warning = "the ledger has no events up to segment 4: journal segment 2"
    assert [line.startswith(warning) for line in caplog.messages] == [True] * (ledger == "lost")
    report = audit(RunFiles(killed))  # it reads all of the journal
    assert report.violation is not None and "journal segment 2" in report.violation.message
