"""Episodes of several turns in whole runs of real processes: kills between turns, wild tools."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from histories import bits
from processes import finished, python_path
from runs import CONFIG, DEADLINE_S, HELPERS

from rlax_plugin.base.files.packing import unpack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Key, ScoredGroup
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.unfinished_turns import RecordedTurn, from_bytes
from rlax_plugin.tools.commands.audit import audit

STEPS = 3
SETTINGS = (
    f"steps={STEPS}",
    "rlax.trainer.checkpoint_every=2",
    "rlax.evaluation.problems=0",
    "rlax.episodes.max_tokens=30",
    # Longer than the ledger waits, so that each round of turns is recorded by itself.
    "rlax.rollouts.engine={name: scripted, latency_s: 0.25}",
)
# Every answer is an expression without a value: each episode has three turns.
CALCULATOR = (
    "rlax.deterministic=true",
    "rlax.environment={name: calculator, begin: '', end: '', result: '0', after: '1', "
    "max_calls: 2}",
)


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(HELPERS))
        yield


def train(directory: Path, *overrides: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    command = ("train", CONFIG, *SETTINGS, *overrides)
    return finished(*command, cwd=directory, kill_at=kill_at, timeout_s=DEADLINE_S)


def files_of(directory: Path) -> RunFiles:
    return RunFiles(directory / "runs/testing")


def recorded_turns(directory: Path) -> list[RecordedTurn]:
    """Turns in the ledger, of groups that are not scored."""
    path = directory / "runs/testing/ledger.sqlite"
    if not path.exists():
        return []
    query = "SELECT group_id, sample, trajectory, turn, body FROM turns ORDER BY id"
    with closing(sqlite3.connect(path, timeout=60)) as db:
        try:
            found = db.execute(query).fetchall()
        except sqlite3.OperationalError:  # it is being made
            return []
    return [from_bytes(Key("train", *where), body) for *where, body in found]


def scored_groups(files: RunFiles) -> dict[int, ScoredGroup]:
    """All groups, as they train if they do."""
    found: dict[int, ScoredGroup] = {}
    for segment, _ in journal.read(files):
        found |= {one.group.id: one.group for one in journal.read_samples(files, segment)}
    return found


def turns_of(group: ScoredGroup) -> dict[tuple[int, int, int], Any]:
    return {
        (episode.index, number, place): turn
        for episode in group.episodes
        for number, one in enumerate(episode.trajectories)
        for place, turn in enumerate(one.turns)
    }


def trained_episodes(files: RunFiles) -> list[Any]:
    """Every batch, but for who generated it."""
    found: list[Any] = []
    for segment, _ in journal.read(files):
        if segment.step is None:
            continue
        for one in journal.read_samples(files, segment):
            if one.advantages is not None:
                samples = [
                    (
                        bits(t.given),
                        t.sampled.seed,
                        *map(bits, (t.sampled.tokens, t.sampled.logprobs)),
                    )
                    for t in turns_of(one.group).values()
                ]
                found.append((segment.step, one.group.id, bits(one.advantages), samples))
    return found


def weights(files: RunFiles) -> dict[str, bytes]:
    names = sorted(files.names("checkpoints"), key=lambda name: int(name.partition(".")[0]))
    arrays = unpack(files.get(f"checkpoints/{names[-1]}"))
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()}


def all_events(files: RunFiles) -> list[ev.Event]:
    return [event for segment, _ in journal.read(files) for event in segment.events]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    directory = tmp_path_factory.mktemp("undisturbed")
    done = train(directory, *CALCULATOR)
    assert done.returncode == 0, done.stdout + done.stderr
    files = files_of(directory)
    assert audit(files).violation is None
    return files


def assert_same_run(files: RunFiles, undisturbed: RunFiles) -> None:
    assert weights(files) == weights(undisturbed)
    assert trained_episodes(files) == trained_episodes(undisturbed)
    report = audit(files)
    assert report.violation is None, report.violation
    assert report.figures.turns_discarded == 0


def test_a_trainer_killed_between_turns_goes_on_with_those_it_has(
    tmp_path: Path, undisturbed: RunFiles
) -> None:
    for number in (4, 5, 3, 6):
        directory = tmp_path / str(number)
        directory.mkdir()
        killed = train(directory, *CALCULATOR, kill_at=f"ledger-written:{number}")
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
        recorded = recorded_turns(directory)
        if any(key.turn for key, _ in recorded):
            break
    assert {key.turn for key, _ in recorded} >= {0, 1}, "no group was between turns"
    again = train(directory, *CALCULATOR)
    assert again.returncode == 0, again.stdout + again.stderr
    files = files_of(directory)
    assert_same_run(files, undisturbed)
    groups = scored_groups(files)
    for key, turn in recorded:
        place = key.sample, key.trajectory, key.turn
        assert groups[key.group].attempt == 1
        assert bits(turns_of(groups[key.group])[place]) == bits(turn)  # type: ignore[index]
    open_ = {key.group for key, _ in recorded}
    assert not open_ & {e.group for e in all_events(files) if isinstance(e, ev.Reissued)}
