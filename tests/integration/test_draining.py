"""A worker that is told to leave: it hands its groups over, or finishes them."""

import asyncio
from typing import Any

import pytest
from worker_harness import CONTINUE, STOP, Counting, Worker, group, member, section, trainer, until


async def test_a_draining_worker_hands_over_every_token_it_has_reported():
    settings = section(**CONTINUE)
    async with trainer(settings) as one:
        await one.publish(3)
        endless = Worker("a", Counting(100_000, every=50), settings, one.address)
        await until(lambda: one.held("a") == 3)
        tickets = []
        for number in range(3):  # three calls
            tickets.append(one.dispatcher.submit(group(number)))
            await until(lambda n=number: n in endless.engine.last)
        quick = Worker("b", Counting(10), settings, one.address)
        reported = [len(endless.engine.last[number][0].tokens) for number in range(3)]
        await endless.leave()
        answers = [await ticket for ticket in tickets]
        kept = 0
        for number, (asked, samples, _) in enumerate(answers):
            handed_over = len(endless.engine.last[number][0].tokens)
            kept += 2 * handed_over
            assert [len(s.tokens) for s in asked.resume] == [handed_over] * 2
            # It reported once more, and did not go on until its time was over: 12,000 tokens.
            assert handed_over % 50 == 0 and 0 < handed_over - reported[number] <= 3000
            assert asked.attempt == 2
            for s in samples:
                assert s.workers == ("a", "b") and s.finish == "stop"
                assert s.tokens.tolist() == [*range(len(s.tokens) - 1), STOP]
                assert set(s.versions.tolist()) == {3}
        assert one.dispatcher.tokens_resumed == kept and one.dispatcher.reissued == 3
        assert sorted(again[:2] for again in one.again) == [(number, 2) for number in range(3)]
        # Its calls end and it takes its leave at nearly the same time.
        reasons = {reason for *_, reason in one.again}
        assert reasons <= {"UNAVAILABLE: this worker is leaving", "left"}
        assert one.lost == ["a: left"] and one.quarantined == []
        await quick.leave()


@pytest.mark.parametrize("mode", ["finish", "discard"])
async def test_without_continue_a_drain_finishes_what_was_begun(mode):
    settings = section(on_new_weights=mode, progress_s=0.01)
    async with trainer(settings) as one:
        await one.publish(0)
        engine = Counting(100, every=100)
        worker = Worker("a", engine, settings, one.address)
        await until(lambda: one.held("a") == 0)
        ticket = one.dispatcher.submit(group(0))
        await until(lambda: engine.asked)
        worker.terminated.set()
        asked, samples, _ = await ticket
        await worker.life
        assert asked.attempt == 1 and len(samples[0].tokens) == 100
        assert one.again == [] and engine.cancelled == 0


async def test_draining_worker_does_not_register_again():
    settings, unknown = section(), 0
    async with trainer(settings) as one:
        leaving = member(settings, one.address)
        await leaving.register()
        leaving.draining = True
        hear = one.fleet.Heartbeat

        async def heard(request: Any, context: Any) -> Any:
            nonlocal unknown
            reply = await hear(request, context)
            unknown += not reply.known
            return reply

        one.fleet.Heartbeat = heard
        one.fleet.lose(one.fleet.workers["w"], "a hiccup")
        beats = asyncio.ensure_future(leaving.heartbeat())
        await until(lambda: unknown >= 2)
        assert one.fleet.workers == {} and not beats.done()
        beats.cancel()
        await leaving.leave()


async def test_a_drain_does_not_wait_for_a_worker_that_reports_nothing():
    settings = section(on_new_weights="continue", progress_s=0.1)
    async with trainer(settings) as one:
        await one.publish(0)
        mute = Worker("a", Counting(100_000, every=100_000), settings, one.address)
        await until(lambda: one.held("a") == 0)
        ticket = one.dispatcher.submit(group(0))
        await until(lambda: mute.engine.asked)
        await mute.leave()
        quick = Worker("b", Counting(4), settings, one.address)
        asked, _, _ = await ticket
        assert asked.resume == () and asked.attempt == 2
        await quick.leave()
