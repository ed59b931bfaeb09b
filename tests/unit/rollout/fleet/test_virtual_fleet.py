"""Dispatcher and schedulers together, in virtual time: order, room, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from dispatching import STOP, make
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_workers import VirtualFleet, VirtualSlots

from rlax_plugin.base.types import EMPTY, Key, Request, SamplingParams
from rlax_plugin.rollout.fleet.tickets import Completed

LONGEST = 40
Groups = list[list[int]]
"""The lengths of the samples of each group."""


def generate(
    groups: Groups,
    workers: Sequence[int],
    expected: Sequence[float] = (),
    kills: Mapping[str, int] = EMPTY,
) -> tuple[VirtualFleet, list[Completed]]:
    """Has workers with so many slots generate groups; some are killed at a tick.

    Args:
      expected: length of each group, as the dispatcher is told; empty: nothing.
    """
    lengths = [length for group in groups for length in group]
    sampling = SamplingParams(max_new_tokens=LONGEST, stop_ids=(STOP,))

    async def main() -> tuple[VirtualFleet, list[Completed]]:
        members, dispatcher, _ = make(refresh=lambda request: request)
        fleet = VirtualFleet(members, dispatcher, heartbeat_ticks=3)
        for number, slots in enumerate(workers):
            await fleet.join(f"w{number}", VirtualSlots(slots, lengths.__getitem__))
        done, first = [], 0
        for number, group in enumerate(groups):
            seeds = tuple(range(first, first + len(group)))
            first += len(group)
            context = np.ones(1, np.int32)
            request = Request(Key("train", number), 1, context, seeds, sampling)
            done.append(dispatcher.submit(request, expected[number] if expected else 0.0))
        for name, tick in kills.items():
            fleet.at(tick, lambda name=name: fleet.kill(name))
        await fleet.run(lambda: all(one.done() for one in done))
        assert all(w.assigned == w.requests == 0 for w in members.workers.values())
        await dispatcher.close()
        await members.close()
        return fleet, [one.result() for one in done]

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(("expected", "ticks"), [([], 14), ([2, 2, 10], 10)])
def test_the_longest_group_first_ends_sooner(expected: list[float], ticks: int) -> None:
    # One worker of four slots. As issued, the group of 10 tokens begins when a group of 4 ends;
    # expected to be the longest, it begins first, and the others need the two slots beside it.
    fleet, _ = generate([[4, 4], [4, 4], [10, 10]], [4], expected=expected)
    assert fleet.now == ticks
    slots = fleet.workers["w0"].slots
    assert slots.slot_steps_total == 36 and slots.prefills == 3


def test_ended_samples_make_room_before_the_longest_of_their_group_ends() -> None:
    # Two slots. The sample of 40 tokens keeps one, and the others run in the second one: 6 x 4
    # tokens. Counted as a whole, the first group has more samples than slots until it ends at 40.
    fleet, _ = generate([[40, 4, 4], [4, 4], [4, 4]], [2])
    assert fleet.now == 40 and fleet.workers["w0"].slots.slot_steps_total == 64


@pytest.mark.property
@settings(max_examples=examples(8), deadline=None)
@given(st.data())
def test_every_sample_is_generated_once_whatever_workers_are_lost(data: st.DataObject) -> None:
    size = st.lists(st.integers(1, LONGEST), min_size=1, max_size=6)
    groups = data.draw(st.lists(size, min_size=1, max_size=8))
    lost = data.draw(st.lists(st.integers(0, 60), max_size=2))
    kills = {f"w{number}": tick for number, tick in enumerate(lost, 1)}
    expected = data.draw(st.lists(st.integers(1, 50), min_size=len(groups), max_size=len(groups)))
    fleet, found = generate(groups, [2, 3, 1], expected=expected, kills=kills)
    assert [[len(s.tokens) for s in one.samples] for one in found] == groups
    seeds = [seed for one in found for seed in one.request.seeds]
    assert seeds == list(range(sum(map(len, groups))))
    if not kills:
        tokens = sum(worker.slots.slot_steps_total for worker in fleet.workers.values())
        assert tokens == sum(map(sum, groups))
