"""A later turn goes to the worker that generated the one before, if it need not wait there."""

import dataclasses

from dispatching import answer, join, make, request
from waiting import turns

from rlax_plugin.base.types import Key
from rlax_plugin.rollout.fleet import earlier_turns
from rlax_plugin.rollout.fleet.earlier_turns import EarlierTurns


def test_the_worker_of_a_turn_is_known_from_the_turn_before(monkeypatch):
    monkeypatch.setattr(earlier_turns, "_MOST", 2)
    found = EarlierTurns()
    found.generated(Key("train", 0), "a")
    assert found.worker_before(Key("train", 0, 1, 0, 1)) is None  # episodes had one turn so far
    found.requested(Key("train", 0, 1, 0, 1))
    found.generated(Key("train", 1), "b")
    assert found.worker_before(Key("train", 1, 5, 0, 1)) == "b"
    found.generated(Key("train", 1, 5, 0, 1), "c")
    assert found.worker_before(Key("train", 1, 5, 0, 2)) == "c"
    assert found.worker_before(Key("train", 1, 4, 0, 1)) == "b"
    assert found.worker_before(Key("evaluate", 1, 5, 0, 1)) is None
    assert found.worker_before(Key("train", 1, 5, 1, 0)) is None  # another trajectory begins
    found.generated(Key("train", 2), "a")
    assert found.worker_before(Key("train", 1, 4, 0, 1)) is None  # the oldest is forgotten
    assert found.worker_before(Key("train", 1, 5, 0, 2)) == "c"


def turn(group: int, sample: int, number: int):
    asked = request(group)
    return dataclasses.replace(
        asked, key=Key("train", group, sample, 0, number), seeds=asked.seeds[:1]
    )


async def test_a_turn_goes_where_its_context_may_be_kept():
    fleet, dispatcher, _ = make()
    for name in ("a", "b"):
        await join(fleet, name, answer)
    first = dispatcher.submit(turn(0, 0, 1))
    (worker,) = (await first)[2]
    for number in range(2, 6):
        # Without it, the least loaded worker would be a, the first one, each time.
        other = dispatcher.submit(turn(number, 0, 0))
        later = dispatcher.submit(turn(0, 0, number))
        assert (await later)[2] == (worker,)
        await other
    await turns()
    await dispatcher.close()
