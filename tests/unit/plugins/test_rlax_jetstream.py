"""The engine thread and its scheduler, with slots that generate tokens without a model."""

import asyncio
import dataclasses
import gc
import queue
import threading

import numpy as np
import pytest
from part_stubs import SourceStub
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.driver import JetStreamDriver
from rlax_jetstream.engine import JetstreamEngine
from rlax_jetstream.servicer import Forwarder
from scripted_slots import (
    DEADLINE_S,
    ScriptedSlots,
    Source,
    Store,
    generated,
    play,
    request,
    tokens_of,
    until,
    version,
)
from streamed import joined
from waiting import eventually

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.tokens.byte_level import DIRECTORY
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.config import Rollouts
from rlax_plugin.data.prompts.text_source import TextSource
from rlax_plugin.rollout.batching.jobs import TRUNCATED_LOGPROBS, Job
from rlax_plugin.rollout.batching.scheduler import Scheduler
from rlax_plugin.testing import make_sampled
from rlax_plugin.weights.verification import take_version


def test_groups_arrive_complete_and_in_index_order():
    async def scenario(engine, slots):
        await take_version(engine, version(3))
        groups = await generated(
            engine, request(7, [100, 200, 300]), request(8, [400], 9, stop_ids=(408,))
        )
        assert [s.seed for s in groups[7]] == [100, 200, 300]
        np.testing.assert_array_equal(groups[7][1].tokens, [200, 201, 202, 203, 204])
        np.testing.assert_array_equal(groups[7][1].logprobs, [-200, -201, -202, -203, -204])
        np.testing.assert_array_equal(groups[7][1].versions, [3] * 5)
        assert groups[7][0].finish == "length" and groups[8][0].finish == "stop"
        assert not any(s.side for s in (*groups[7], *groups[8]))
        assert engine.version == 3
        assert engine.health()["slots"] == 4 and engine.health()["waiting"] == 0

    play(scenario)


@pytest.mark.parametrize("cut", [{"top_k": 5}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.5}])
def test_where_a_request_truncates_its_samples_say_with_which_log_probs(cut):
    async def scenario(engine, slots):
        await take_version(engine, version(3))
        asked = request(7, [100, 200])
        sampling = dataclasses.replace(asked.sampling, **cut)
        groups = await generated(engine, dataclasses.replace(asked, sampling=sampling))
        for sample in groups[7]:
            assert sample.side.keys() == {TRUNCATED_LOGPROBS}
            found = sample.side[TRUNCATED_LOGPROBS]
            np.testing.assert_array_equal(found, 2 * sample.logprobs)
            assert found.dtype == np.float32

    play(scenario)


def test_truncated_log_probs_of_a_resumed_sample_go_on_behind_those_it_came_with():
    async def scenario(engine, slots):
        await take_version(engine, version(3))
        tokens = tokens_of(100, 0, 2)
        begun = make_sampled(
            seed=100,
            tokens=tokens,
            logprobs=-tokens.astype(np.float32),
            finish=None,
            side={TRUNCATED_LOGPROBS: np.array([-7, -8], np.float32)},
        )
        asked = request(7, [100], resume=[begun])
        sampling = dataclasses.replace(asked.sampling, top_k=5)
        groups = await generated(engine, dataclasses.replace(asked, sampling=sampling))
        found = groups[7][0].side[TRUNCATED_LOGPROBS]
        assert found.tolist() == [-7, -8, -2 * 102, -2 * 103, -2 * 104]

    play(scenario, rollouts={"on_new_weights": "continue"})


def test_a_group_larger_than_the_slots_is_accepted_in_parts():
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        groups = await generated(engine, request(0, range(0, 1000, 100)))
        assert [s.seed for s in groups[0]] == list(range(0, 1000, 100))
        assert [len(entry[1]) for entry in slots.inserts()] == [4, 4, 2]

    play(scenario)


def test_with_a_backlog_a_freed_slot_is_filled_within_two_steps():
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        short = [request(i, [100 * i], new=5) for i in range(1, 7)]
        await generated(engine, request(0, [0], new=50), *short)
        steps = [entry[0] for entry in slots.inserts()]
        # Four at once; three end 4 steps later and their slots are filled at most 2 steps on.
        assert steps[:4] == [0] * 4
        assert all(4 <= step <= 6 for step in steps[4:])
        assert slots.steps_total >= 49

    play(scenario)


def test_free_slots_mean_short_calls_and_a_full_house_long_ones():
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        await generated(engine, request(0, [1, 2], new=10))
        assert {e[1:] for e in slots.log if e[0] == "decode"} == {(3, True)}
        slots.log.clear()
        await generated(engine, request(1, [1, 2, 3, 4], new=10))
        assert [e[1:] for e in slots.log if e[0] == "decode"] == [(50, True)]

    play(scenario, arrival_steps=3)


def test_what_a_client_may_cancel_is_generated_in_shorter_calls():
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        slots.log.clear()
        await generated(engine, request(0, [1, 2, 3, 4], new=50, purpose="serve"))
        assert [e[1:] for e in slots.log if e[0] == "decode"] == [(20, True)] * 3

    play(scenario, interrupt_steps=20)


def test_a_failing_engine_fails_everything_that_waits():
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        slots.fail_with = RuntimeError("out of memory")
        with pytest.raises(WorkerError, match="out of memory"):
            await generated(engine, request(0, [1]), request(1, [2], min_version=5))
        with pytest.raises(WorkerError, match="out of memory"):
            engine.health()
        with pytest.raises(WorkerError, match="out of memory"):
            await generated(engine, request(2, [3]))
        with pytest.raises(WorkerError, match="out of memory"):
            await take_version(engine, version(1))

    play(scenario)


async def test_a_failing_start_is_reported():
    def explode():
        raise ValueError("no such model")

    engine = JetstreamEngine(
        make_slots=explode,
        store=Store(),
        rollouts=Rollouts(),
        config=JetstreamConfig(),
        make_prompt_source=Source,
    )
    with pytest.raises(WorkerError, match="no such model"):
        await take_version(engine, version(0))
    with pytest.raises(WorkerError, match="no such model"):
        engine.health()


async def test_a_start_that_fails_when_nobody_waits_for_it_any_more_is_no_unretrieved_error():
    goes_on, unretrieved = threading.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, told: unretrieved.append(told))

    def build():
        goes_on.wait(60)
        raise RuntimeError("no memory")

    engine = JetstreamEngine(
        make_slots=build,
        store=None,
        rollouts=Rollouts(),
        config=JetstreamConfig(),
        make_prompt_source=SourceStub,
    )
    waits = asyncio.ensure_future(engine.prepare())
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait({waits})
    closes = asyncio.ensure_future(asyncio.to_thread(engine.close))
    await eventually(lambda one=engine: one._closing)
    goes_on.set()
    await closes
    await asyncio.sleep(0)
    del engine, waits, closes
    gc.collect()
    assert unretrieved == []


def test_an_error_in_on_reply_ends_generate():
    async def scenario(engine, slots):
        await take_version(engine, version(0))

        def reject(key, samples):
            raise KeyError(key)

        with pytest.raises(KeyError):
            await engine.generate([request(0, [1]), request(1, [2], new=50)], reject)
        assert (await generated(engine, request(2, [1])))[2][0].seed == 1

    play(scenario)


def test_closing_fails_what_waits():
    async def scenario(engine, slots):
        waiting = asyncio.ensure_future(generated(engine, request(0, [1])))
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.close)
        with pytest.raises(WorkerError, match="closed"):
            await waiting

    play(scenario)


def test_the_scheduler_lingers_to_fill_several_slots_with_one_prefill():
    slots = ScriptedSlots(slots=3)
    scheduler = Scheduler(slots, arrival_steps=4, linger_steps=2)
    jobs = [
        Job(request(i, [100 * i], new=new), deliver=print, fail=print)
        for i, new in enumerate([3, 4, 20])
    ]
    weights = {"w": np.zeros(2, np.float32)}
    slots.insert(weights, scheduler.plan(jobs, 0))
    done = scheduler.advance(weights, more_waits=True)
    assert done == jobs[:2] and scheduler.active == 1 and slots.steps_total == 4
    scheduler.drop([jobs[2]])
    assert slots.free_slots == [0, 1, 2] and scheduler.active == 0


class Channel:
    """As JetStream's AsyncMultifuture."""

    def __init__(self):
        self.results, self.ended, self.error = [], threading.Event(), None
        self.is_cancelled = False

    def add_result(self, result):
        self.results.append(result)

    def close(self):
        self.ended.set()

    def set_exception(self, error):
        self.error = error
        self.ended.set()

    def cancelled(self):
        return self.is_cancelled


class Active:
    """As JetStream's ActiveRequest."""

    def __init__(self, content, max_tokens=5, **more):
        self.prefill_content, self.max_tokens = content, max_tokens
        self.is_client_side_tokenization = not isinstance(content, str)
        self.return_channel = Channel()
        self.__dict__.update(more)


def test_jetstream_requests_run_on_the_same_scheduler():
    pytest.importorskip("jetstream.core.utils.return_sample")

    async def scenario(engine, slots):
        driver = JetStreamDriver(engine)
        assert not driver.live and driver.get_total_concurrent_requests() == 4
        await take_version(engine, version(0))
        assert driver.live and driver.prefill_backlog_size() == 0
        one, two = Active([1, 2]), Active([1, 2, 3], max_tokens=50)
        text, empty, long = Active("what is"), Active([]), Active([1], max_tokens=51)
        unset = Active([1, 2], max_tokens=0)
        driver.place_request_on_prefill_queue(two, samples=2)
        for active in (one, text, empty, long, unset):
            driver.place_request_on_prefill_queue(active)
        for active in (one, two, text, empty, long, unset):
            await until(active.return_channel.ended)
        (sample,) = joined(one.return_channel.results)
        assert len(sample.token_ids) == 5 and not sample.text
        first, second = joined(two.return_channel.results)
        assert len(first.token_ids) == 50 and first.token_ids != second.token_ids
        (whole,) = joined(unset.return_channel.results)
        assert len(whole.token_ids) == 50
        assert "encode" in str(text.return_channel.error)
        assert "0 prompt tokens" in str(empty.return_channel.error)
        assert "max_tokens = 51: must be from 1 to 50" in str(long.return_channel.error)

    play(scenario)


class Texts(TextSource):
    """A source with a tokenizer whose tokens are bytes; it encodes while ``gate`` is open."""

    def __init__(self):
        super().__init__(Tokenizer.load(DIRECTORY, "tokenizer"))
        self.encoded, self.gate = [], threading.Event()

    def encode(self, text):
        self.encoded.append(text)
        assert self.gate.wait(DEADLINE_S)
        return super().encode(text)


@pytest.mark.parametrize(("text", "tokens"), [("é" * 4, 8), ("a" * 8, 8), ("é" * 8, 16)])
def test_a_text_that_may_fit_is_encoded(text, tokens):
    pytest.importorskip("jetstream.core.utils.return_sample")

    async def scenario(engine, slots):
        source, active = Texts(), Active(text)
        engine.prompt_source = lambda: source
        source.gate.set()
        await take_version(engine, version(0))
        JetStreamDriver(engine).place_request_on_prefill_queue(active)
        await until(active.return_channel.ended)
        assert source.encoded == [text]
        error = active.return_channel.error
        assert error is None if tokens == 8 else "16 prompt tokens" in str(error)

    play(scenario)


def test_a_text_that_no_tokenizer_makes_short_enough_is_not_encoded():
    class Unnamed(SourceStub):
        """A source that names no tokenizer."""

        def encode(self, text):
            raise AssertionError("must not be called")

    async def scenario(engine, slots):
        for source, most in ((Texts(), 8 * 16), (Unnamed(), 8 * 256)):
            engine.prompt_source = lambda source=source: source
            active = Active("é" * (most + 1))
            JetStreamDriver(engine).place_request_on_prefill_queue(active)
            await until(active.return_channel.ended)
            said = f"text_content has {most + 1} characters: must have at most {most}, as"
            assert said in str(active.return_channel.error)

    play(scenario)


def test_an_error_that_repeats_the_text_fits_into_a_status():
    class Repeating(SourceStub):
        def encode(self, text):
            raise ValueError(f"{text} has no tokens")

    async def scenario(engine, slots):
        engine.prompt_source, active = Repeating, Active("\n" * 2000)
        JetStreamDriver(engine).place_request_on_prefill_queue(active)
        await until(active.return_channel.ended)
        said = str(active.return_channel.error)
        assert said.startswith("text_content cannot be encoded: ") and len(said) < 400
        assert said.isprintable()

    play(scenario)


def test_texts_of_one_client_count_as_waiting_and_keep_no_other_waiting():
    pytest.importorskip("jetstream.core.utils.return_sample")

    async def scenario(engine, slots):
        source, driver = Texts(), JetStreamDriver(engine)
        engine.prompt_source = lambda: source
        await take_version(engine, version(0))
        first, other = Active("first"), Active([1, 2])
        try:
            driver.place_request_on_prefill_queue(first)
            await eventually(lambda: source.encoded)
            driver.place_request_on_prefill_queue(other)
            await until(other.return_channel.ended)
            assert other.return_channel.error is None
            later = [Active(f"text {i}") for i in range(15)]
            for active in later:
                driver.place_request_on_prefill_queue(active)
            assert driver.prefill_backlog_size() == 16 and engine.backlog == 0
            with pytest.raises(queue.Full):
                driver.place_request_on_prefill_queue(Active([1]))
            for active in later:
                active.return_channel.is_cancelled = True
        finally:
            source.gate.set()
        await until(first.return_channel.ended)
        await eventually(lambda: driver.prefill_backlog_size() == 0)
        assert source.encoded == ["first"] and first.return_channel.error is None

    play(scenario)


def test_the_forwarder_answers_until_the_service_is_there():
    class Details:
        method = "/jetstream_proto.Orchestrator/Decode"

    class Other:
        method = "/else.Service/Decode"

    class Handler:
        def service(self, details):
            return "handler" if details is Details else None

    forwarder = Forwarder("jetstream_proto.Orchestrator")
    assert forwarder.service(Details) is not None and forwarder.service(Other) is None
    forwarder.add_generic_rpc_handlers((Handler(),))
    assert forwarder.service(Details) == "handler" and forwarder.service(Other) is None
