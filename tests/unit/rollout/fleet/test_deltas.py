"""A worker sends only what is new; what does not fit what it has sent makes it distrusted."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from dispatching import GONE, STOP, answer, generated, join, make, request
from waiting import eventually, turns

from rlax_plugin.base.types import EMPTY, Key, Sampled
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_from_proto, reply_to_proto


def rest(message: pb.Request, samples: list[Sampled], known: list[int]) -> pb.Reply:
    return reply_to_proto(key_from_proto(message.key), samples, known)


async def test_reports_of_one_worker_add_up():
    """Two tokens and one, two more and none, the end; by then 7 and 2 tokens."""

    def script(message: pb.Request) -> Any:
        seeds = message.seeds
        yield rest(message, generated(seeds, 2, 1, None), [0, 0])
        yield rest(message, generated(seeds, 4, 1, None), [2, 1])
        yield rest(message, generated(seeds, 7, 2, "stop"), [4, 1])

    fleet, dispatcher, lost = make()
    await join(fleet, "a", script)
    _, samples, _ = await dispatcher.submit(request(0))
    assert [s.tokens.tolist() for s in samples] == [[0, 1, 2, 3, 4, 5, STOP], [0, STOP]]
    assert [s.versions.tolist() for s in samples] == [[5] * 7, [5] * 2]
    assert [s.logprobs.tolist() for s in samples] == [[-1] * 7, [-1] * 2]
    assert lost == []
    await dispatcher.close()


async def test_what_an_earlier_call_was_told_is_nothing_to_go_on_from():
    """Behind another attempt a worker may not leave out what it sent for the first one."""

    def script(message: pb.Request) -> Any:
        yield rest(message, generated(message.seeds, 2, 2, None), [0, 0])
        yield GONE(message)

    fleet, dispatcher, lost = make(lambda one: request(0, attempt=one.attempt))
    await join(fleet, "a", script)
    ticket = dispatcher.submit(request(0))
    await turns()
    await join(fleet, "b", lambda asked: rest(asked, generated(asked.seeds, 3, 3, "stop"), [2, 2]))
    await eventually(lambda: len(lost) >= 2)
    assert lost[1] == ("b: b: group 0 is garbled: tokens from 2 on, but those before were not sent")
    await join(fleet, "c", answer)
    assert [len(s.tokens) for s in (await ticket).samples] == [1, 1]
    await dispatcher.close()


def changed(
    key: Mapping[str, int] = EMPTY, versions: Sequence[int] = (), **fields: int
) -> Callable[[pb.Reply], pb.Reply]:
    """Changes a reply's key, or its first sample."""

    def change(reply: pb.Reply) -> pb.Reply:
        reply.key.MergeFrom(pb.Key(**key))
        sample = reply.samples[0]
        if versions:
            sample.versions[:] = versions
        for name, value in fields.items():
            setattr(sample, name, value)
        return reply

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed(begins_at=3), "group 0 is garbled: tokens from 3 on"),
        (changed(seed=77), "group 0 was answered with samples that were not requested"),
        (changed(key={"purpose": 5}), "a sent a garbled answer: purpose 5 does not exist"),
        (changed(key={"turn": 1}), "a answered group 0, which it had not been sent"),
        # What was sent first is of version 5.
        (changed(versions=[4, 2]), "sample 0 has versions that are negative or go backwards"),
        (changed(versions=[11, 2]), "sample 0 was generated with a weight version above 10"),
    ],
)
async def test_a_second_report_that_contradicts_itself_or_the_first_costs_a_worker_its_trust(
    change, reason
):
    def script(message: pb.Request) -> Any:
        yield rest(message, generated(message.seeds, 2, 2, None), [0, 0])
        yield change(rest(message, generated(message.seeds, 4, 4, None), [2, 2]))

    fleet, dispatcher, lost = make()
    await join(fleet, "a", script)
    bad = fleet.workers["a"]
    ticket = dispatcher.submit(request(0))
    await eventually(lambda: lost)
    assert lost[0].startswith("a: ") and reason in lost[0], lost
    assert not bad.trusted
    good = await join(fleet, "b", answer)
    assert (await ticket).workers == (fleet.workers["b"],)
    assert not good.requests[0].resume  # nothing of it is gone on from
    await dispatcher.close()


async def test_keys_tell_the_turns_of_an_episode_apart():
    fleet, dispatcher, _ = make()
    stub = await join(fleet, "a", answer)
    keys = [Key("train", 0), Key("train", 0, 1, 0, 1), Key("train", 0, 1, 0, 2)]
    keys += [Key("evaluate", 0), Key("serve", 0)]
    tickets = [dispatcher.submit(request(0, key=key, samples=1)) for key in keys]
    answers = await asyncio.gather(*tickets)
    assert [one.request.key for one in answers] == keys
    later_turns_first = [*keys[1:3], keys[0], *keys[3:]]
    assert [key_from_proto(one.key) for one in stub.requests] == later_turns_first
    await dispatcher.close()
