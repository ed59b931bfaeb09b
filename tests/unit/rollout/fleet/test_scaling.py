"""The number of workers that a run needs: a table of loads, and no change and back."""

import asyncio

import pytest
from dispatching import HeldClock, answer, join, make
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import eventually

from rlax_plugin.ports.scaling import ScalingRule
from rlax_plugin.rollout.fleet.backlog import Backlog, scale
from rlax_plugin.rollout.fleet.scaling import FleetLoad, Scaler, decide

RULE = ScalingRule(least=1, most=4, up_s=10, down_s=20, waits=0.1)
SLOTS = 16  # of a worker


def loads(seconds: int, waited: float, samples: int, workers: int) -> list[FleetLoad]:
    """One load a second."""
    return [FleetLoad(1, waited, samples, workers, SLOTS * workers)] * seconds


@pytest.mark.parametrize(
    ("wanted", "seen", "workers"),
    [
        # The trainer waits, and more samples are under way than there are slots.
        (1, loads(10, 0.5, 20, 1), 2),
        (1, loads(9, 0.5, 20, 1), None),  # not for long enough
        (1, loads(10, 0.05, 20, 1), None),  # it hardly waits
        (1, loads(10, 0.5, 16, 1), None),  # another worker would have nothing to do
        (1, loads(10, 0.5, 60, 1), 2),  # 4 would be enough; it doubles at most
        (2, loads(10, 0.5, 60, 2), 4),
        (3, loads(10, 0.5, 600, 3), 4),
        (4, loads(10, 0.5, 600, 4), None),  # the most
        (2, loads(10, 0.5, 600, 1), None),  # the second one is starting
        (1, [], None),
        (1, loads(10, 0.5, 600, 0), None),  # the first one is starting
        # Fewer would have slots enough twice over.
        (3, loads(20, 0.0, 16, 3), 2),
        (3, loads(19, 0.0, 16, 3), None),
        (3, loads(20, 0.0, 17, 3), None),
        (3, loads(20, 1.0, 16, 3), 2),  # the trainer waits, but not for them
        (3, loads(20, 0.0, 0, 2), 2),  # one that cannot start is not needed
        (1, loads(20, 0.0, 0, 1), None),  # the least
        # Bursts: samples are under way only while the trainer waits, and then for all slots.
        (2, 10 * (loads(1, 1.0, 32, 2) + loads(9, 0.0, 0, 2)), None),
        (2, 10 * (loads(1, 1.0, 33, 2) + loads(9, 0.0, 0, 2)), 3),
        (3, 10 * (loads(1, 1.0, 16, 3) + loads(9, 0.0, 0, 3)), 2),
        # Beyond its limits, whatever the load.
        (7, [], 4),
        (0, [], 1),
    ],
)
def test_the_number_of_workers_follows_from_the_load(wanted, seen, workers):
    decision = decide(RULE, wanted, seen)
    assert (None if decision is None else decision.workers) == workers


def changes(scaler: Scaler, seen: list[FleetLoad]) -> list[tuple[int, int]]:
    """The seconds and numbers of workers of decisions; all that are wanted are there at once."""
    found = [(0, scaler.wanted)]
    for second, load in enumerate(seen, 1):
        workers = scaler.wanted
        slots = SLOTS * workers
        if scaler.add(FleetLoad(load.seconds, load.waited_s, load.samples, workers, slots)):
            found.append((second, scaler.wanted))
    return found


def test_a_fleet_grows_with_its_load_and_shrinks_again():
    busy, idle = loads(30, 0.5, 64, 1), loads(90, 0.0, 0, 1)
    # Each decision needs a whole window of load since the last one.
    assert changes(Scaler(RULE), [*busy, *idle]) == [
        *((0, 1), (10, 2), (20, 4), (49, 3), (69, 2), (89, 1))
    ]


@pytest.mark.property
@settings(max_examples=examples(25), deadline=None)
@given(
    start=st.integers(1, 8),
    mean=st.integers(0, 20_000),
    noise=st.lists(st.tuples(st.floats(-0.33, 0.33), st.floats(0, 1)), min_size=60, max_size=300),
)
def test_noise_never_leads_to_a_change_and_back(start, mean, noise):
    """Whatever the trainer's waiting does, and samples that vary by a third around their mean."""
    rule = ScalingRule(least=1, most=8, up_s=5, down_s=10, waits=0.1)
    seen = [FleetLoad(1, waited, round(mean * (1 + by)), 0, 0) for by, waited in noise]
    scaler = Scaler(rule)
    scaler.wanted = start
    found = [workers for _, workers in changes(scaler, seen)]
    assert found in (sorted(found), sorted(found, reverse=True))


class Resized:
    """A launcher that notes the numbers of workers."""

    scaling = ScalingRule(least=1, most=3, up_s=0.05, down_s=0.05, waits=0.1)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def resize(self, workers: int) -> None:
        self.sizes.append(workers)


async def test_the_launcher_and_the_user_learn_of_decisions():
    fleet, dispatcher, _ = make()
    await join(fleet, "a", answer)
    backlog, launcher, said = Backlog(), Resized(), []
    done = asyncio.get_running_loop().create_future()
    backlog.watch(40, done)
    scaler = Scaler(launcher.scaling)
    seen = fleet.workers, 0.01, lambda *decided: said.append(decided)
    scaling = asyncio.ensure_future(scale(launcher, scaler, backlog, *seen))
    with backlog.waited_for():
        await eventually(lambda: launcher.sizes == [2])
    done.set_result(None)
    await eventually(lambda: launcher.sizes == [2, 1] and backlog.samples == 0)
    assert scaler.wanted == 1
    assert said[0][0] == 1 and said[0][1].workers == 2
    assert said[0][1].reason.startswith("the trainer waited for samples 100% of")
    scaling.cancel()
    await dispatcher.close()
    await fleet.close()


async def test_a_backlog_counts_samples_and_the_time_they_are_waited_for():
    clock = HeldClock()

    fleet, dispatcher, _ = make(clock=clock)
    await join(fleet, "a", answer, slots=4)
    backlog = Backlog(clock)
    clock.now += 2
    with backlog.waited_for():
        clock.now += 1
        with backlog.waited_for():  # an evaluation beside the trainer counts once
            clock.now += 3
        assert backlog.load(fleet.workers) == FleetLoad(6, 4, 0, 1, 4)
        clock.now += 1
    clock.now += 1
    assert backlog.load(fleet.workers) == FleetLoad(2, 1, 0, 1, 4)
    fleet.workers["a"].draining = True
    assert backlog.load(fleet.workers) == FleetLoad(0, 0, 0, 0, 0)
    await dispatcher.close()
    await fleet.close()
