"""Workers that differ: what they declare, what a run needs, and who gets which group."""

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest
from dispatching import answer, declared, join, make, registration, reply_to, request
from sections import section_with
from waiting import turns

from rlax_plugin.base.errors import DeadlineError
from rlax_plugin.base.types import Request, SideSpec
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.capabilities import Needs, of_proto, to_proto
from rlax_plugin.rpc import rlax_pb2 as pb

ALL = Capabilities(
    stop_strings=True,
    slots=4,
    vocabulary=99,
    context_tokens=20,
    seeded=True,
    logprobs=True,
    resumes=True,
    scores=True,
    side={"experts": SideSpec("int8", (2, 3), "context+sampled")},
)


def test_what_an_engine_declares_arrives_whole():
    assert of_proto(to_proto(ALL)) == ALL
    assert of_proto(to_proto(Capabilities(slots=1))) == Capabilities(slots=1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slots": 0}, "it offers 0 slots"),
        ({"slots": 2**21}, "it offers 2097152 slots"),
        ({"vocabulary": -1}, "its vocabulary is -1"),
        ({"side": {"x": pb.SideChannel(dtype="int8", over="all")}}, "its side channel 'x' is not"),
        (
            {"side": {"x": pb.SideChannel(dtype="int32", over="sampled", trailing=[1 << 15])}},
            "its side channel 'x' has 131,072 bytes for each token; at most 65,536",
        ),
        (
            {"side": {"x": pb.SideChannel(dtype="i", over="sampled", trailing=[0])}},
            "its side channel 'x' is not",
        ),
    ],
)
def test_what_no_worker_can_mean_is_rejected(changes, reason):
    fields = {"slots": 4, "verification": "canary"} | changes
    with pytest.raises(ValueError, match=reason):
        of_proto(pb.Capabilities(**fields))


def test_what_a_run_needs_follows_from_its_config():
    section = section_with(rollouts={"group_size": 6, "max_new_tokens": 10})
    train, evaluate = (Needs.of(section, trains=trains) for trains in (True, False))
    assert train.lacking(ALL) is None
    blind = dataclasses.replace(ALL, logprobs=False)
    assert train.lacking(blind) == "its engine gives no log-probs, which training needs"
    assert evaluate.lacking(blind) is None
    ends = Needs.of(section, trains=False, stop_strings=True)
    assert ends.lacking(ALL) is None
    lacking = ends.lacking(dataclasses.replace(ALL, stop_strings=False))
    assert lacking == "its engine does not end samples at stop strings, which the prompt source has"
    known = Needs.of(section, trains=True, side=ALL.side)
    assert known.lacking(ALL) is None and known.lacking(blind) is not None
    wide = {"experts": SideSpec("int8", (2, 65536)), "x": SideSpec("int8")}
    assert known.lacking(dataclasses.replace(ALL, side=wide)) == (
        "its samples have the side channel 'experts' (int8[2, 65536] over sampled) and 1 more, and "
        "the run takes int8[2, 3] over context+sampled: the Extension of its rlax.rollouts.engine "
        "declares them (side)"
    )
    other = dataclasses.replace(ALL, side={"x": SideSpec("int8")})
    assert "'x' (int8[] over sampled), and the run takes only experts: " in known.lacking(other)
    short = dataclasses.replace(ALL, context_tokens=10)
    assert "takes at most 10 tokens, and a completion alone may have 10" in train.lacking(short)
    strict = Needs.of(
        section_with(deterministic=True, rollouts={"group_size": 6, "slots": 8}), trains=True
    )
    assert strict.lacking(dataclasses.replace(ALL, seeded=False, slots=5)) == (
        "its engine is not seeded, which rlax.deterministic needs; it has 5 slots, and with "
        "rlax.deterministic the 6 samples of a group are generated at once"
    )
    assert strict.lacking(dataclasses.replace(ALL, slots=6)) is None


async def test_a_worker_that_lacks_something_is_rejected_and_told_of_once():
    noted, unable = list[str](), registration("w", capabilities=declared(logprobs=False))
    fleet, _, _ = make(needs=Needs(logprobs=True), note=noted.append)
    for _ in range(2):
        reply = await fleet.Register(unable, None)
        assert (reply.accepted, reply.unfit, reply.name_taken) == (False, True, False)
    assert noted == [f"worker w was rejected: {reply.reason}"] and fleet.workers == {}
    assert (await fleet.Register(registration("w"), None)).accepted


async def test_what_changes_later_is_heard_with_a_heartbeat():
    fleet, _, lost = make(needs=Needs(logprobs=True))
    await join(fleet, "w", answer)
    beat = pb.HeartbeatRequest(worker="w", process="p")
    beat.capabilities.CopyFrom(declared(vocabulary=7))
    assert (await fleet.Heartbeat(beat, None)).known
    assert fleet.workers["w"].capabilities.vocabulary == 7
    assert (await fleet.Heartbeat(pb.HeartbeatRequest(worker="w", process="p"), None)).known
    assert fleet.workers["w"].capabilities.vocabulary == 7  # it said nothing of it
    beat.capabilities.logprobs = False
    assert not (await fleet.Heartbeat(beat, None)).known
    assert lost == ["w: its engine gives no log-probs, which training needs"]


async def test_of_idle_workers_the_one_gets_a_group_that_has_the_smaller_share_of_its_slots_taken():
    fleet, dispatcher, _ = make()
    for name, slots, taken in (("small", 4, 3), ("large", 16, 4)):
        await join(fleet, name, answer, slots=slots)
        fleet.workers[name].assigned = taken
    assert (await dispatcher.submit(request(0))).workers == (fleet.workers["large"],)
    await dispatcher.close()


def long(number: int, tokens: int) -> Request:
    return request(number, context=np.ones(tokens, np.int32))


async def test_long_sequences_go_to_engines_that_have_room_and_do_not_hold_others_up():
    fleet, dispatcher, _ = make()  # completions of at most 16 tokens
    short = await join(fleet, "short", answer, context_tokens=20)
    tickets = [dispatcher.submit(one) for one in (long(0, 5), long(1, 4), long(2, 9))]
    await tickets[1]
    await turns()
    assert not tickets[0].done() and not tickets[2].done()
    ample = await join(fleet, "ample", answer, context_tokens=25)
    await asyncio.gather(*tickets)
    assert [g for call in short.calls for g in call] == [1]
    assert sorted(g for call in ample.calls for g in call) == [0, 2]
    await dispatcher.close()


async def test_sequences_that_no_engine_has_room_for_fail_and_others_go_on():
    fleet, dispatcher, _ = make(startup_s=0.05)
    await join(fleet, "short", answer, context_tokens=20)
    ticket = dispatcher.submit(long(0, 5))
    with pytest.raises(
        DeadlineError, match=r"takes 21 tokens \(those that are there take at most 20\)"
    ):
        await ticket
    await dispatcher.submit(long(1, 4))
    await dispatcher.close()


async def test_a_worker_that_loads_no_weights_is_what_is_missing():
    """And not a longer context: its own is long enough."""

    fleet, dispatcher, _ = make(startup_s=0.05)
    await join(fleet, "empty", answer, version=-1, context_tokens=20)
    with pytest.raises(DeadlineError) as caught:
        await dispatcher.submit(long(0, 4))
    assert "has loaded weights (there without them, each with a log that says why: empty)" in (
        str(caught.value)
    )
    await dispatcher.close()


async def test_partial_samples_go_to_an_engine_that_resumes_or_are_begun_afresh():
    def reports_and_dies(message: pb.Request) -> Any:
        yield reply_to(message, 3, 2)
        raise asyncio.CancelledError

    for others, resumed in ((("plain", "able"), [3, 2]), (("plain",), [])):
        fleet, dispatcher, _ = make(refresh=lambda request: request)
        await join(fleet, "dying", reports_and_dies, slots=1000, version=5)
        ticket = dispatcher.submit(request(0))
        await turns()
        fleet.lose(fleet.workers["dying"], "gone")
        stubs = [
            await join(fleet, name, answer, version=5, resumes=name == "able") for name in others
        ]
        asked, _, workers, *_ = await ticket
        assert [len(s.tokens) for s in asked.resume] == resumed
        assert [w.name for w in workers] == (["dying"] if resumed else []) + [others[-1]]
        assert [len(stub.requests) for stub in stubs] == [0] * (len(others) - 1) + [1]
        assert dispatcher.tokens_resumed == sum(resumed)
        await dispatcher.close()
