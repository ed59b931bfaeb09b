"""New weights: proved before use, and what becomes of samples that run or come from elsewhere."""

import asyncio
import dataclasses

import numpy as np
import pytest
from scripted_slots import ScriptedSlots, generated, play, request, tokens_of, under_way, version
from waiting import eventually

from rlax_plugin.base.errors import WeightsMismatchError
from rlax_plugin.base.types import Canary
from rlax_plugin.rollout.batching.jobs import Job
from rlax_plugin.rollout.batching.scheduler import Scheduler
from rlax_plugin.testing import make_sampled
from rlax_plugin.weights.verification import take_version

WEIGHTS = {"w": np.zeros(2, np.float32)}
NEVER_S, ALWAYS_S = 1e6, 1e-9


def canary(version, wrong=0.0, tolerance=1e-4, length=6):
    tokens = np.arange(length + 1, dtype=np.int32)
    logprobs = (-version * tokens[1:]).astype(np.float32)
    logprobs[3:4] += wrong
    return Canary(tokens, logprobs, tolerance)


class WrongDecoding(ScriptedSlots):
    """Prefill is right; what it decodes has half the log-prob that prefill gives it."""

    def _generated(self, slot):
        greedy = self.running[slot].sampling.temperature == 0
        generated = super()._generated(slot)
        half = generated.logprobs / 2 if greedy else generated.logprobs
        return dataclasses.replace(generated, logprobs=half)


def test_a_decoding_that_differs_from_prefill_is_found_and_the_old_weights_stay():
    async def scenario(engine, slots):
        await take_version(engine, version(1))
        before = engine.health()
        with pytest.raises(WeightsMismatchError, match="decoding behind the canary") as caught:
            await take_version(engine, version(2, canary=canary(2)))
        # Tokens 0, 1, 2, ...: prefill gives token 3 the log-prob -6, decoding -3.
        assert "its token 5 (id 5) the log-prob -5, but prefill gives it -10" in str(caught.value)
        assert engine.version == 1 and slots.running == {}
        assert engine.health() == before  # what the canary generated is no sample
        (samples,) = (await generated(engine, request(0, [1]))).values()
        assert samples[0].versions.tolist() == [1] * 5

    play(scenario, WrongDecoding())


@pytest.mark.parametrize("mode", ["finish", "continue", "discard"])
def test_nothing_is_generated_while_decoding_is_verified(mode):
    """A group runs, another waits; both go on with the new weights where they may."""

    async def scenario(engine, slots):
        running = await under_way(engine, slots, version(1), request(0, [1, 2, 3], new=50))
        loaded = await engine.load(version(2))
        trial = asyncio.ensure_future(engine.decode_greedy(np.arange(3), 4, loaded))
        await eventually(lambda: engine.paused)
        slots.gate.set()
        tokens, logprobs = await trial
        np.testing.assert_array_equal(tokens, [0, 1, 2, 3])
        np.testing.assert_array_equal(logprobs, [0, -2, -4, -6])  # with weights that are not in use
        assert engine.version == 1 and slots.running == {}
        inserts = len(slots.inserts())
        late = asyncio.ensure_future(generated(engine, request(1, [4], new=3)))
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert len(slots.inserts()) == inserts and not late.done()
        await engine.use(loaded)
        groups = (await running) | (await late)
        first = 1 if mode == "finish" else 2  # with it, the group had to end before
        assert {int(r.versions[-1]) for r in groups[0]} == {first}
        assert {int(r.versions[0]) for r in groups[1]} == {2}
        assert_complete(groups[0], [1, 2, 3], [50] * 3)

    options = {"on_new_weights": mode, "progress_s": NEVER_S}
    play(scenario, rollouts=options, interrupt_steps=5)


@pytest.mark.parametrize("when", ["tried", "waiting"])
def test_discarded_weights_let_generation_go_on_with_the_old_ones(when):
    async def scenario(engine, slots):
        running = await under_way(engine, slots, version(1), request(0, [1, 2], new=50))
        loaded = await engine.load(version(2))
        trial = asyncio.ensure_future(engine.decode_greedy(np.arange(3), 4, loaded))
        await eventually(lambda: engine.paused)
        if when == "waiting":
            loaded.discard()
        slots.gate.set()
        await asyncio.gather(trial, return_exceptions=True)
        assert trial.cancelled() == (when == "waiting")
        loaded.discard()
        (samples,) = (await running).values()
        assert [s.versions.tolist() for s in samples] == [[1] * 50] * 2
        assert engine.version == 1

    options = {"on_new_weights": "continue", "progress_s": NEVER_S}
    play(scenario, rollouts=options, interrupt_steps=5)


def test_quantised_caches_are_not_compared_with_prefill():
    async def scenario(engine, slots):
        slots.rounds_caches = True
        await take_version(engine, version(2, canary=canary(2)))
        assert engine.version == 2 and slots.inserts() == []

    play(scenario, WrongDecoding())


async def swapped_while_running(engine, slots, requests):
    """Generates with version 1; version 2 arrives during the first decode call."""
    running = await under_way(engine, slots, version(1), *requests)
    swap = asyncio.ensure_future(take_version(engine, version(2)))
    await eventually(lambda: engine.paused)
    slots.gate.set()
    groups, _ = await asyncio.gather(running, swap)
    return groups


# Sample 0 stops at its third token, so it ends in the first call of three steps or fewer.
MIXED = (request(0, [100, 200, 300, 400], new=10, stop_ids=(102,)), request(1, [500], new=4))


def assert_complete(samples, seeds, lengths):
    for sample, seed, length in zip(samples, seeds, lengths, strict=True):
        tokens = tokens_of(seed, 0, length)
        np.testing.assert_array_equal(sample.tokens, tokens)
        np.testing.assert_array_equal(sample.logprobs, -tokens)
        assert sample.versions.dtype == np.int32 and sample.seed == seed


def test_discarded_samples_start_again_and_finished_ones_stay():
    async def scenario(engine, slots):
        groups = await swapped_while_running(engine, slots, MIXED)
        assert_complete(groups[0], [100, 200, 300, 400], [3, 10, 10, 10])
        assert [s.finish for s in groups[0]] == ["stop", "length", "length", "length"]
        assert [set(r.versions.tolist()) for r in groups[0]] == [{1}, {2}, {2}, {2}]
        first, again, *_ = slots.inserts()
        assert first == (0, (0, 1, 2, 3), 1, 0)
        # One prefill of the prompt for all three, at once: group 1 was waiting behind them.
        assert again[1:] == ((0, 1, 2), 2, 0) and again[0] <= 3
        assert [r.versions.tolist() for r in groups[1]] == [[2] * 4]
        assert not any(entry[0] == "read" for entry in slots.log)

    play(scenario, rollouts={"on_new_weights": "discard"}, linger_steps=0)


def test_continued_samples_go_on_behind_their_tokens():
    async def scenario(engine, slots):
        groups = await swapped_while_running(engine, slots, MIXED)
        assert_complete(groups[0], [100, 200, 300, 400], [3, 10, 10, 10])
        assert [s.finish for s in groups[0]] == ["stop", "length", "length", "length"]
        assert groups[0][0].versions.tolist() == [1] * 3
        for sample in groups[0][1:]:
            assert sample.versions.tolist() == [1] * 3 + [2] * 7
        # Each behind its own three tokens, in a prefill of its own.
        assert slots.inserts()[1:4] == [(2, (slot,), 2, 3) for slot in (0, 1, 2)]

    options = {"on_new_weights": "continue", "progress_s": NEVER_S}
    play(scenario, rollouts=options, linger_steps=0)


def test_a_long_decode_call_does_not_hold_new_weights_up():
    async def scenario(engine, slots):
        groups = await swapped_while_running(engine, slots, [request(0, [1, 2, 3, 4], new=50)])
        assert {e[1] for e in slots.log if e[0] == "decode"} == {5}
        assert [r.versions.tolist() for r in groups[0]] == [[1] * 6 + [2] * 44] * 4

    options = {"on_new_weights": "continue", "progress_s": NEVER_S}
    play(scenario, rollouts=options, interrupt_steps=5)


def test_progress_is_reported_and_does_not_end_the_group():
    async def scenario(engine, slots):
        await take_version(engine, version(1))
        reports = []
        requests = [
            request(0, [100, 200, 300], new=9, stop_ids=(102,)),
            request(1, [500, 600], new=9),
        ]
        await engine.generate(requests, lambda *report: reports.append(report))
        of_first = [samples for key, samples in reports if key.group == 0]
        lengths = [[len(s.tokens) for s in samples] for samples in of_first]
        # Sample 0 stops after 3 tokens; 4 slots: a sample of group 1 takes its place.
        assert lengths == [[3, 3, 3], [3, 7, 7], [3, 9, 9]]
        for samples, tokens in zip(of_first, lengths, strict=True):
            assert_complete(samples, [100, 200, 300], tokens)
        ends = [[s.finish for s in samples] for samples in of_first]
        assert ends == [["stop", None, None]] * 2 + [["stop", "length", "length"]]
        of_second = [samples for key, samples in reports if key.group == 1]
        assert [len(r.tokens) for r in of_second[0]] == [3, 0]  # its second sample waits
        assert [s.finish for s in of_second[-1]] == ["length", "length"]
        assert ("read", 4) in slots.log  # all slots in one transfer

    options = {"on_new_weights": "continue", "progress_s": ALWAYS_S}
    play(scenario, rollouts=options, interrupt_steps=4, linger_steps=0)


@pytest.mark.parametrize(
    ("mode", "progress_s"), [("continue", NEVER_S), ("finish", ALWAYS_S), ("discard", ALWAYS_S)]
)
def test_progress_is_read_only_when_due(mode, progress_s):
    async def scenario(engine, slots):
        await take_version(engine, version(1))
        reports = []
        await engine.generate([request(0, [1, 2])], lambda *report: reports.append(report))
        assert len(reports) == 1
        assert ("read", 2) not in slots.log

    play(scenario, rollouts={"on_new_weights": mode, "progress_s": progress_s})


def part(seed, length, finish=None, number=1):
    tokens = tokens_of(seed, 0, length)
    nats = -tokens.astype(np.float32)
    versions = np.full(length, number, np.int32)
    return make_sampled(seed=seed, tokens=tokens, logprobs=nats, versions=versions, finish=finish)


def test_a_group_begun_elsewhere_is_completed():
    async def scenario(engine, slots):
        await take_version(engine, version(2))
        seeds = [100, 200, 300, 400]
        resume = [part(100, 10, "length"), part(200, 0), part(300, 6), part(400, 0)]
        groups = await generated(engine, request(0, seeds, new=10, resume=resume))
        assert groups[0][0] is resume[0]
        assert_complete(groups[0], seeds, [10] * 4)
        assert {s.finish for s in groups[0]} == {"length"}
        assert groups[0][2].versions.tolist() == [1] * 6 + [2] * 4
        # One prefill for those without tokens, one behind six tokens.
        assert sorted(e[1:] for e in slots.inserts()) == [((0, 2), 2, 0), ((1,), 2, 6)]

    play(scenario, rollouts={"on_new_weights": "continue", "progress_s": NEVER_S})


def test_a_group_complete_elsewhere_is_handed_back_at_once():
    async def scenario(engine, slots):
        resume = [part(100, 3, "stop"), part(200, 10, "length")]
        begun = request(0, [100, 200], new=10, min_version=9, resume=resume)
        # Nothing is left to generate, so no weights are waited for either.
        assert await generated(engine, begun) == {0: resume}

    play(scenario)


def test_a_sample_does_not_go_back_to_older_weights():
    async def scenario(engine, slots):
        await take_version(engine, version(1))
        begun = request(0, [100], new=10, min_version=1, resume=[part(100, 6, number=2)])
        waiting = asyncio.ensure_future(generated(engine, begun))
        await generated(engine, request(1, [5]))
        assert not waiting.done()
        await take_version(engine, version(2))
        assert (await waiting)[0][0].versions.tolist() == [2] * 10

    play(scenario, rollouts={"on_new_weights": "continue", "progress_s": NEVER_S})


def test_a_running_sample_waits_while_older_weights_are_kept():
    async def scenario(engine, slots):
        running = await under_way(engine, slots, version(2), request(0, [100], new=10))
        kept = asyncio.ensure_future(take_version(engine, version(1)))  # for an evaluation
        await eventually(lambda: engine.paused)
        slots.gate.set()
        await kept
        assert (await generated(engine, request(1, [5])))[1][0].versions[0] == 1
        assert not running.done()
        await take_version(engine, version(3))
        versions = (await running)[0][0].versions.tolist()
        assert set(versions) == {2, 3} and versions == sorted(versions)

    options = {"on_new_weights": "continue", "progress_s": NEVER_S}
    play(scenario, rollouts=options, interrupt_steps=2)


def test_deterministic_training_groups_are_generated_alone_sample_i_in_slot_i():
    slots = ScriptedSlots()
    scheduler = Scheduler(slots, arrival_steps=4, linger_steps=2, deterministic=True)

    def job(group, seeds, purpose="train"):
        return Job(request(group, seeds, purpose=purpose), deliver=print, fail=print)

    waiting = [
        job(0, [1], "serve"),
        job(7, [2, 3], "evaluate"),
        job(0, [10, 20, 30]),
        job(8, [4], "evaluate"),
        job(1, [40, 50]),
    ]
    order = []
    while waiting or scheduler.active:
        slots.insert(WEIGHTS, scheduler.plan(waiting, 0))
        waiting = [job for job in waiting if job.waiting]
        running = scheduler.jobs()
        assert len(running) == 1 or not any(job.trains for job in running)
        order += [str(job.request.key) for job in scheduler.advance(WEIGHTS, bool(waiting))]
    assert order == [
        *("client's group 0", "evaluation group 7"),
        *("group 0", "evaluation group 8", "group 1"),
    ]
    taken = [entry[1] for entry in slots.inserts()]
    assert taken == [(0,), (1, 2), (0, 1, 2), (0,), (0, 1)]
