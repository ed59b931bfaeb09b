"""What the engine tells of groups on their way, and what it rejects, on slots without a model."""

import asyncio
import itertools
import threading

import pytest
from rlax_jetstream.driver import JetStreamDriver, RequestError
from scripted_slots import ScriptedSlots, generated, play, request, until, version
from test_rlax_jetstream import Active
from waiting import eventually

from rlax_plugin.base.types import Key
from rlax_plugin.weights.verification import take_version


def attempt(group):
    return Key("train", group), 1


class OneByOne:
    """A gate of ``ScriptedSlots`` that lets single decode calls pass."""

    def __init__(self):
        self._passes = threading.Semaphore(0)
        self._open = False

    def wait(self, timeout):
        return self._open or self._passes.acquire(timeout=timeout)

    def set(self):
        self._open = True
        self._passes.release()

    async def one_call(self, slots):
        """Lets the engine make one decode call, and returns once it is in the next one."""
        slots.decoding.clear()
        self._passes.release()
        await until(slots.decoding)


def test_every_group_gets_on_while_a_swap_waits():
    """With ``finish``: one group runs, one waits for the swap and one for the version."""

    async def scenario(engine, slots):
        await take_version(engine, version(1))
        slots.gate = OneByOne()
        slots.decoding.clear()
        running = asyncio.ensure_future(generated(engine, request(0, [1, 2], new=600)))
        await until(slots.decoding)
        swap = asyncio.ensure_future(take_version(engine, version(2)))
        await eventually(lambda: engine.paused)
        late = asyncio.ensure_future(generated(engine, request(1, [3], new=600)))
        newer = asyncio.ensure_future(generated(engine, request(2, [4], new=600, min_version=2)))
        await eventually(lambda: engine.backlog >= 2)
        seen = [engine.progress()]
        assert seen[0].keys() == {attempt(0), attempt(1), attempt(2)}
        for _ in range(2):  # a swap waits: each call is as long as a call may be
            await slots.gate.one_call(slots)
            seen.append(engine.progress())
        for before, after in itertools.pairwise(seen):
            for key in before:
                assert after[key] != before[key], (key, before, after)
        # Two samples of one token at first; the first call looked for arrivals after 4 steps.
        assert [one[attempt(0)] for one in seen] == [0, 2 * 4, 2 * (4 + 256)]
        for waits in (attempt(1), attempt(2)):
            assert [one[waits] for one in seen] == [0, 4, 4 + 256]
        assert engine.version == 1 and not swap.done()
        slots.gate.set()
        await asyncio.gather(running, swap, late, newer)
        assert engine.progress() == {} and engine.version == 2

    play(
        scenario,
        ScriptedSlots(max_new_tokens=600),
        rollouts={"max_new_tokens": 600},
        arrival_steps=4,
    )


def test_what_other_programs_ask_is_no_group_of_a_run():
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        slots.gate.clear()
        slots.decoding.clear()
        client = Active([1, 2])
        JetStreamDriver(engine).place_request_on_prefill_queue(client)
        await until(slots.decoding)
        (one,) = engine.progress()
        assert one == (Key("serve", 0), 1)  # neither training's first group nor an evaluation's
        slots.gate.set()
        await until(client.return_channel.ended)

    pytest.importorskip("jetstream.core.utils.return_sample")
    play(scenario)


@pytest.mark.parametrize("tokens", [[1, 10**6 + 1000], [-1, 2]])
def test_tokens_outside_of_the_vocabulary_are_rejected(tokens):
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        assert engine.capabilities.vocabulary == 10**6 + 1000
        client, driver = Active(tokens), JetStreamDriver(engine)
        driver.place_request_on_prefill_queue(client)
        await until(client.return_channel.ended)
        # The servicer answers a RequestError with INVALID_ARGUMENT.
        assert isinstance(client.return_channel.error, RequestError)
        assert "which must be from 0 to 1000999" in str(client.return_channel.error)
        assert slots.inserts() == []
        driver.stop()

    play(scenario)
