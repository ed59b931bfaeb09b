"""What a lost worker had generated of a group travels to the next one, unless it is quarantined."""

import dataclasses
from typing import Any

from dispatching import GONE, Script, answer, join, make, quarantine, reply_to, request
from waiting import eventually, turns

from rlax_plugin.base.types import Request
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import request_from_proto


def reporting(*reports: tuple[int, ...]) -> Script:
    """Reports so many tokens per sample, one report after the other; then the worker is lost."""

    def script(message: pb.Request) -> Any:
        for lengths in reports:
            yield reply_to(message, *lengths)
        yield GONE(message)

    return script


async def test_where_samples_do_not_continue_unfinished_tokens_are_no_part_of_the_next_attempt():
    fleet, dispatcher, _ = make(continues=False)
    await join(fleet, "bad", reporting((1, 0), (4, 3)))
    ticket = dispatcher.submit(request(0))
    good = await join(fleet, "good", answer)
    answered, samples, _ = await ticket
    assert answered.attempt == 2 and [s.workers for s in samples] == [("good",)] * 2
    (message,) = good.requests
    assert not request_from_proto(message).resume and dispatcher.tokens_resumed == 0
    await dispatcher.close()


async def test_what_was_generated_travels_along_to_the_next_worker():
    asked: list[Request] = []

    def keep(request: Request) -> Request:
        asked.append(request)
        return dataclasses.replace(request, min_version=4)

    fleet, dispatcher, _ = make(keep)
    await join(fleet, "bad", reporting((1, 0), (4, 3), (3, 3)))  # the last one is older
    ticket = dispatcher.submit(request(0))
    await turns()
    assert not ticket.done()
    good = await join(fleet, "good", answer)
    answered, samples, workers = await ticket
    assert [s.workers for s in samples] == [("bad", "good")] * 2
    assert [w.name for w in workers] == ["bad", "good"]
    assert (answered.attempt, answered.min_version) == (2, 4)
    (message,) = good.requests
    resume = request_from_proto(message).resume
    assert [s.tokens.tolist() for s in resume] == [[0, 1, 2, 3], [0, 1, 2]]
    assert [s.finish for s in resume] == [None, None]
    assert (asked[0].attempt, asked[0].min_version) == (2, 0)
    assert [len(s.tokens) for s in asked[0].resume] == [4, 3]
    assert dispatcher.tokens_resumed == 7 and dispatcher.reissued == 1
    ((told, reason),) = dispatcher.again
    assert told is answered and reason == "UNAVAILABLE: told 0"
    assert dispatcher.endings == ["worker_lost"]
    assert fleet.workers["good"].assigned == 0
    await dispatcher.close()


async def test_partials_that_are_rejected_are_forgotten_and_none_are_sent():
    def drop(request: Request) -> Request:
        return dataclasses.replace(request, resume=())

    fleet, dispatcher, _ = make(drop)
    await join(fleet, "one", reporting((4, 3)))
    ticket = dispatcher.submit(request(0))
    await turns()
    two = await join(fleet, "two", reporting((1, 0)))
    await eventually(lambda: two.requests)
    three = await join(fleet, "three", answer)
    await ticket
    assert [len(stub.requests[0].resume) for stub in (two, three)] == [0, 0]
    assert dispatcher.tokens_resumed == 0 and dispatcher.reissued == 2
    await dispatcher.close()


async def test_one_call_that_a_draining_worker_ends_leaves_its_others_open():
    def script(message: pb.Request) -> Any:
        return (answer if message.key.group else GONE)(message)

    fleet, dispatcher, lost = make()
    stub = await join(fleet, "a", script, held=True)
    tickets = []
    for i in range(2):
        tickets.append(dispatcher.submit(request(i)))
        await turns()
    worker = fleet.workers["a"]
    worker.draining = True
    assert stub.calls == [[0], [1]] and worker.assigned == 4
    stub.go[0].set()
    await eventually(lambda: worker.assigned == 2)
    assert lost == [] and not tickets[1].done()
    stub.go[1].set()
    assert (await tickets[1])[0].attempt == 1
    await join(fleet, "b", answer)
    assert (await tickets[0])[0].attempt == 2
    await dispatcher.close()


def first_complete(tokens: int) -> Script:
    """The first sample ends after two tokens, the second has so many; then the worker is lost."""

    def script(message: pb.Request) -> Any:
        reply = reply_to(message, 2, tokens)
        reply.samples[0].CopyFrom(reply_to(message, 2, 0, finish="stop").samples[0])
        yield reply
        yield GONE(message)

    return script


async def test_a_sample_names_those_who_generated_it():
    fleet, dispatcher, _ = make()
    await join(fleet, "a", first_complete(1))
    ticket = dispatcher.submit(request(0))
    await turns()
    await join(fleet, "b", first_complete(4))
    await eventually(lambda: dispatcher.reissued >= 2)
    await join(fleet, "c", answer)
    _, samples, workers = await ticket
    assert [s.workers for s in samples] == [("a",), ("a", "b", "c")]
    assert [len(s.tokens) for s in samples] == [2, 5]
    assert [w.name for w in workers] == ["a", "b", "c"]
    assert [w.lost != "" for w in workers] == [True, True, False]
    await dispatcher.close()


async def test_what_waits_forgets_what_a_quarantined_worker_generated():
    fleet, dispatcher, _ = make()
    await join(fleet, "bad", reporting((4, 3)))
    ticket = dispatcher.submit(request(0))
    await eventually(lambda: dispatcher.reissued)
    await quarantine(fleet, "bad")  # it is lost already
    good = await join(fleet, "good", answer)
    _, samples, workers = await ticket
    assert len(good.requests[0].resume) == 0 and dispatcher.tokens_resumed == 0
    assert [s.workers for s in samples] == [("good",)] * 2
    assert [w.name for w in workers] == ["good"]
    await dispatcher.close()


async def test_what_a_worker_had_under_way_when_it_was_quarantined_ends_as_that():
    fleet, dispatcher, _ = make()
    bad = await join(fleet, "bad", answer, held=True)
    ticket = dispatcher.submit(request(0))
    await eventually(lambda: bad.requests)
    await quarantine(fleet, "bad")
    bad.release()
    await join(fleet, "good", answer)
    await ticket
    assert dispatcher.endings == ["quarantined"]
    await dispatcher.close()


async def test_an_answer_that_goes_on_from_a_quarantined_workers_tokens_is_rejected():
    fleet, dispatcher, lost = make()
    await join(fleet, "bad", reporting((4, 3)))
    ticket = dispatcher.submit(request(0))
    await turns()
    good = await join(fleet, "good", answer, held=True)
    await eventually(lambda: good.requests)
    await quarantine(fleet, "bad")
    good.release()
    asked, samples, workers = await ticket
    assert [len(one.resume) for one in good.requests] == [2, 0]
    assert asked.attempt == 3 and [len(s.tokens) for s in samples] == [1, 1]
    assert workers == (fleet.workers["good"],) and len(lost) == 1
    assert dispatcher.endings == ["worker_lost", "quarantined"]
    assert workers[0].assigned == workers[0].requests == 0
    await dispatcher.close()
