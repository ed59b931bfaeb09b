"""``rlax.retention`` removes what it does not keep, and nothing that a resume needs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from histories import batch_of, group
from sections import section_with

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.files.seals import sealed
from rlax_plugin.config import Retention, RlaxSection
from rlax_plugin.ports.training import Trainer
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal, samples
from rlax_plugin.run.state.journal import JournalError, NotKeptError
from rlax_plugin.run.state.pruned import NAME, Pruned, read_pruned
from rlax_plugin.run.state.retention import Retaining, retaining
from rlax_plugin.run.state.snapshots import snapshot, snapshot_name, snapshot_steps


class RecordedSteps:
    """A run of one group a step, with a snapshot after every second step, as it goes on.

    Segments 1 and 2 hold the batches of steps 1 and 2, 3 belongs to the snapshot of step 2, and so
    on: those of steps 2n - 1 and 2n are 3n - 2 and 3n - 1.

    Attributes:
      checkpoints: steps of those that the trainer has.
    """

    def __init__(self, files: RunFiles):
        self.files, self.checkpoints = files, set[int]()
        self.step, self._number, self._checksum = 0, 0, journal.START

    def train(self, steps: int, ready: dict[int, int] | None = None) -> None:
        """As far as to the last step's snapshot; its checkpoint is to come.

        Args:
          ready: of that snapshot: group -> segment.
        """
        for _ in range(steps):
            self.step += 1
            judged = [group(self.step, self.step - 1, "p")]
            self._write(self.step, samples.of_batch(batch_of(self.step, judged)))
            if self.step % 2 == 0:
                self._write(None, None)
                state = {"ready": {str(one): number for one, number in (ready or {}).items()}}
                document = snapshot(self.step, self._number, self._checksum, state)
                self.files.put(snapshot_name(self.step), sealed(json.dumps(document)))

    def _write(self, step: int | None, batch: Any) -> None:
        self._number += 1
        self._checksum = journal.write(
            self.files,
            number=self._number,
            previous=self._checksum,
            step=step or self.step + 1,
            batch=batch,
            others=None,
            events=[ev.encode(ev.Published(self.step, "d"))],
        )

    def remove(self, **retention: Any) -> int:
        """Removes what is not kept; returns how often it took a turn."""
        work = Retaining(Retention(**retention), self.files, lambda: self.checkpoints)
        work.note_checkpoints()
        turns = 1
        while work.remove_some():
            turns += 1
        return turns

    @property
    def steps(self) -> list[int]:
        """Those whose samples are there."""
        numbers = journal.numbers(self.files, journal.SAMPLES)
        found = (journal.read_one(self.files, number).step for number in numbers)
        return [step for step in found if step is not None]


@pytest.fixture
def run(tmp_path: Path) -> RecordedSteps:
    return RecordedSteps(RunFiles(tmp_path / "run"))


def test_everything_is_kept_unless_the_config_says_otherwise(run: RecordedSteps) -> None:
    run.train(8)
    run.checkpoints = {2, 4, 6}
    assert run.remove() == 1
    assert run.steps == list(range(1, 9)) and not run.files.exists(NAME)


def test_the_newest_steps_are_kept(run: RecordedSteps) -> None:
    run.train(12)
    run.checkpoints = {2, 4, 6, 8, 10}
    run.remove(samples_steps=5)
    assert run.steps == [8, 9, 10, 11, 12]
    assert read_pruned(run.files) == Pruned(until=10, step=7)  # of 7 and 8: 10 and 11
    run.remove(samples_steps=5)
    assert run.steps == [8, 9, 10, 11, 12]
    run.train(2)
    run.checkpoints |= {12}
    run.remove(samples_steps=5)
    assert run.steps == [10, 11, 12, 13, 14]
    assert journal.last_number(run.files) == 21  # segments stay


def test_what_the_two_newest_checkpoints_need_is_kept(run: RecordedSteps) -> None:
    run.train(8)
    run.checkpoints = {2, 4}  # those of 6 and 8 are not there, for whatever reason
    run.remove(samples_steps=1)
    assert run.steps == [3, 4, 5, 6, 7, 8]  # from step 2 on
    run.checkpoints = {4, 6}
    run.remove(samples_steps=1)
    assert run.steps == [5, 6, 7, 8]


def test_the_first_checkpoint_alone_is_not_trusted(run: RecordedSteps) -> None:
    run.train(2)
    run.remove(samples_steps=1)
    assert run.steps == [1, 2]
    run.checkpoints = {2}  # it is there by name, and may still be being written
    run.train(2)
    run.remove(samples_steps=1)
    assert run.steps == [1, 2, 3, 4]
    run.checkpoints = {4}  # what keeps one removes the old one when it has the new one
    run.train(2)
    run.remove(samples_steps=1)
    assert run.steps == [5, 6]
    assert snapshot_steps(run.files) == [4, 6]
    run.checkpoints = {6}
    run.train(2)
    run.remove(samples_steps=1)
    assert run.steps == [7, 8]


def test_samples_of_groups_that_were_ready_are_kept(run: RecordedSteps) -> None:
    run.train(6, ready={3: 2})  # of step 2's segment, as all these snapshots say
    run.checkpoints = {2, 4}
    run.train(2)
    run.checkpoints = {4, 6}
    run.remove(samples_steps=1)
    assert run.steps == [2, 5, 6, 7, 8]
    assert read_pruned(run.files) == Pruned(until=5, step=4, kept=frozenset({2}))
    pruned = read_pruned(run.files)
    assert [number in pruned for number in (1, 2, 5, 6)] == [True, False, True, False]
    run.train(4)
    run.checkpoints = {8, 10}
    run.remove(samples_steps=1)  # no snapshot needs it now
    assert run.steps == [9, 10, 11, 12]
    assert read_pruned(run.files) == Pruned(until=11, step=8)


def test_snapshots_go_with_their_checkpoints(run: RecordedSteps) -> None:
    run.train(10)
    run.checkpoints = {4, 6}
    run.remove()
    assert snapshot_steps(run.files) == [4, 6, 8, 10]  # those of 8 and 10 may be to come
    run.checkpoints = {6, 8}
    run.remove()
    assert snapshot_steps(run.files) == [6, 8, 10]
    run.checkpoints = set()
    run.remove()
    assert snapshot_steps(run.files) == [6, 8, 10]


def test_many_are_removed_in_turns(run: RecordedSteps) -> None:
    run.train(200)
    run.checkpoints = set(range(2, 200, 2))
    turns = run.remove(samples_steps=10)
    assert run.steps == list(range(191, 201))
    assert turns == 6  # 285 segments, of which a turn looks at 64 or a few more


def test_a_kill_before_the_files_are_removed_is_harmless(run: RecordedSteps, monkeypatch) -> None:
    run.train(8)
    run.checkpoints = {2, 4, 6}
    removed: list[str] = []

    class Killed(BaseException):
        pass

    delete: Callable[[str], None] = run.files.delete

    def dies_at_the_third(name: str) -> None:
        if len(removed) == 2:
            raise Killed
        removed.append(name)
        delete(name)

    monkeypatch.setattr(run.files, "delete", dies_at_the_third)
    with pytest.raises(Killed):
        run.remove(samples_steps=2)
    monkeypatch.undo()
    assert removed == [journal.samples_name(1), journal.samples_name(2)]
    assert read_pruned(run.files) == Pruned(until=5, step=4)
    assert run.steps == [3, 4, 5, 6, 7, 8]  # segments 4 and 5 are still there, and are read
    segments = [segment for segment, _ in journal.read(run.files)]
    assert [one.group.id for one in journal.read_samples(run.files, segments[3])] == [3]
    with pytest.raises(NotKeptError, match=r"the samples of steps 1 to 4 are not kept \(rlax\.ret"):
        journal.read_samples(run.files, segments[0])
    run.remove(samples_steps=2)
    assert run.steps == [5, 6, 7, 8]
    run.files.delete(journal.samples_name(8))  # not by retention
    with pytest.raises(JournalError, match=r"segment 8: .*00000008\.parquet is missing"):
        journal.read_samples(run.files, segments[7])


def test_what_cannot_be_removed_stays_until_the_next_time(
    run: RecordedSteps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run.train(8)
    run.checkpoints = {2, 4, 6}

    def fails(name: str) -> None:
        raise RlaxError(f"{name} cannot be removed: access denied")

    with monkeypatch.context() as patch:
        patch.setattr(run.files, "delete", fails)
        assert run.remove(samples_steps=2) == 1
    assert "rlax.retention does not keep are still there" in caplog.text
    assert len(run.steps) == 8
    run.remove(samples_steps=2)
    assert run.steps == [5, 6, 7, 8]


def test_a_damaged_record_is_named(run: RecordedSteps) -> None:
    for data in (b"{", b"[]", b'{"until": 3}', b'{"until": 3, "step": "x", "kept": []}'):
        run.files.put(NAME, data)
        with pytest.raises(RlaxError, match=r"samples/pruned\.json is damaged"):
            read_pruned(run.files)


# --- trainers ------------------------------------------------------------------------------------


class Silent(Trainer):
    def run(self, port: object) -> None:
        pass


class Telling(Silent):
    keeps_checkpoints = True

    def checkpoints(self) -> dict[int, str]:
        return {2: "2", 4: "4", 6: "6"}


def section(**retention: Any) -> RlaxSection:
    return section_with(retention=retention, trainer={"name": "silent"})


def test_only_a_trainer_that_tells_its_checkpoints_can_have_samples_removed(
    run: RecordedSteps,
) -> None:
    run.train(8)
    with pytest.raises(ConfigError, match=r"samples_steps = 3: trainer silent does not declare"):
        retaining(section(samples_steps=3), run.files, Silent())
    work = retaining(section(), run.files, Silent())
    work.note_checkpoints()
    assert not work.remove_some()
    assert snapshot_steps(run.files) == [2, 4, 6, 8]
    work = retaining(section(samples_steps=2), run.files, Telling())
    assert not work.remove_some()  # it does not know of any yet
    work.note_checkpoints()
    while work.remove_some():
        pass
    assert run.steps == [5, 6, 7, 8]
