"""Turns in the ledger: those that a later process may go on from, all of a group's or none."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flow_harness import Harness, settle
from histories import bits

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import Key, Turn
from rlax_plugin.ports.environment import Outcome
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.journal import Segment
from rlax_plugin.run.state.ledger import Ledger
from rlax_plugin.run.state.unfinished_turns import RecordedTurn, from_bytes, to_bytes
from rlax_plugin.testing import make_sampled

ISSUED = ev.Issued(0, ("a", "b"), 0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite", "hash")
    yield ledger
    ledger.close()


def turn(group: int, sample: int, number: int = 0, trajectory: int = 0, **has: int) -> RecordedTurn:
    key = Key("train", group, sample, trajectory, number)
    tokens = [4 + has.get("token", 0), 5]
    return RecordedTurn(key, Turn(np.array([2, 3], np.int32), make_sampled(tokens=tokens)))


def first(group: int, attempt: int = 1) -> ev.Generated:
    return ev.Generated(group, attempt, ("w0",), 0, 0, 2, 4)


def later(one: RecordedTurn, attempt: int = 1) -> ev.Generated:
    _, group, sample, trajectory, number = one.key
    return ev.Generated(group, attempt, ("w0",), 0, 0, 1, 2, sample, trajectory, number)


def add(ledger: Ledger, *events: ev.Event, turns: tuple[RecordedTurn, ...] = ()) -> int:
    return ledger.add([(event, ev.encode(event)) for event in events], None, turns)


FIRST = (turn(0, 0), turn(0, 1))
SECOND, THIRD, FURTHER = turn(0, 0, 1), turn(0, 0, 2), turn(0, 0, 0, 1)


def test_a_turn_comes_back_bit_for_bit() -> None:
    sampled = make_sampled(
        3, version=7, seed=2**64 - 1, finish="length", workers=("w0", "w1"),
        side={"truncated_logprobs": np.array([-0.0, -1.5, np.nan], np.float32)},
    )  # fmt: skip
    one = RecordedTurn(Key("train", 9, 3, 1, 2), Turn(np.zeros(0, np.int32), sampled))
    assert bits(from_bytes(one.key, to_bytes(one))) == bits(one)


def test_turns_stay_until_their_group_is_scored_or_issued_again(ledger: Ledger) -> None:
    add(ledger, ISSUED, first(0), later(SECOND), turns=(*FIRST, SECOND))
    others = turn(1, 0), turn(1, 1)
    add(ledger, first(1), turns=others)
    assert bits(ledger.turns()) == bits([*FIRST, SECOND, *others])
    add(ledger, ev.Scored(0, 1, 2, None))
    assert bits(ledger.turns()) == bits([*others])
    add(ledger, ev.Reissued(1, 2, "worker lost", Ending.WORKER_LOST))
    assert ledger.turns() == []


def test_what_is_recorded_together_happens_in_order(ledger: Ledger) -> None:
    """Turns of the attempt that was given up go, those of the next one stay."""
    new = turn(0, 0, token=3), turn(0, 1, token=3)
    again = turn(0, 0, 1, token=3)
    issued_again = ev.Reissued(0, 2, "worker lost", Ending.WORKER_LOST)
    add(
        ledger, ISSUED, first(0), later(SECOND), issued_again, first(0, 2),
        later(SECOND, 2), ev.Discarded(0, 0, 0, 1), later(again, 2),
        turns=(*FIRST, SECOND, *new, SECOND, again),
    )  # fmt: skip
    assert bits(ledger.turns()) == bits([*new, again])


def test_a_discarded_turn_goes_alone(ledger: Ledger, tmp_path: Path) -> None:
    add(ledger, ISSUED, first(0), turns=FIRST)
    add(ledger, *map(later, (SECOND, FURTHER, THIRD)), turns=(SECOND, FURTHER, THIRD))
    add(ledger, ev.Discarded(0, 0, 0, 1))
    assert bits(ledger.turns()) == bits([*FIRST, FURTHER, THIRD])
    ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite", "hash")  # by the next process
    assert bits(again.turns()) == bits([*FIRST, FURTHER, THIRD])
    again.close()


def test_a_forgotten_batch_takes_only_later_turns_with_it(ledger: Ledger) -> None:
    # In one transaction: the batch was never committed, and what came before it did happen.
    trained = ev.Trained(1, (7,), 1)
    add(ledger, ISSUED, first(0), later(SECOND), trained, turns=(*FIRST, SECOND))
    assert ledger.tail(0, journal.START) is not None
    assert bits(ledger.turns()) == bits([*FIRST, SECOND])


def test_turns_behind_a_forgotten_batch_are_forgotten(ledger: Ledger) -> None:
    add(
        ledger,
        ISSUED,
        first(0),
        ev.Trained(1, (7,), 1),
        first(1),
        turns=(*FIRST, turn(1, 0), turn(1, 1)),
    )
    assert ledger.tail(0, journal.START) is not None
    assert bits(ledger.turns()) == bits([*FIRST])


def test_a_ledger_of_another_history_has_no_turns(ledger: Ledger) -> None:
    """A process died before it noted a segment, or another machine took the run over."""
    last = add(ledger, ISSUED, first(0), turns=FIRST)
    ledger.committed(1, "11111111", None, last)
    assert ledger.tail(2, "22222222") is None
    ledger.rebuild([(Segment(1, journal.START, None, (), (ISSUED, first(0))), "22222222")])
    assert ledger.turns() == []


async def test_quarantine_between_turns_ends_the_episodes_and_is_recorded_at_once(tmp_path) -> None:
    """No later process takes up what the worker has sampled, and nothing more is sampled."""

    async def two_turns(prompt, played):  # type: ignore[no-untyped-def]
        await played.sample([5])
        return Outcome()

    run = Harness(tmp_path, play=two_turns, groups=1)
    await run.begin()
    run.answers.generate(0, 0, worker="bad")
    await settle()
    run.answers.generate_turn(min(run.answers.later), 0, worker="good")
    await settle()
    run.quarantine("bad")
    await settle()
    assert not run.answers.later and not run.answers.playing
    await run.recorder.flush()
    assert run.ledger.turns() == [] and run.run_state.open[0].attempt == 2
    run.answers.generate(0, 0, worker="bad")  # a new process of that name
    await settle()
    for key in sorted(run.answers.later):
        run.answers.generate_turn(key, 0, worker="good")
    await settle()
    assert not run.errors and 0 in run.run_state.ready
    _, stats = await run.flow.batch(1)
    assert stats.requests == {"quarantined": 1}
