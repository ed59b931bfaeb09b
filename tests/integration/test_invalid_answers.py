"""Processes that answer nonsense: they may return, until the third time."""

import asyncio
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from worker_harness import LIMIT_S, STOP, Counting, Worker, group, section, trainer, until

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Attempt, Request, Sampled, SamplingParams
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.fleet import MAX_NONSENSE


class Lying(Counting):
    """Every second group has a token beyond the vocabulary."""

    vocabulary = 10**6 + 1
    says = True  # that it has this vocabulary

    @property
    def capabilities(self) -> Capabilities:
        had = super().capabilities
        return had if self.says else dataclasses.replace(had, vocabulary=0)

    def _sampled(self, request: Request, index: int, generated: list[int], done: bool) -> Sampled:
        sound = super()._sampled(request, index, generated, done)
        if request.key.group % 2 == 0:
            return sound
        tokens = np.array([self.vocabulary, *sound.tokens[1:]], np.int32)
        return dataclasses.replace(sound, tokens=tokens)


@pytest.mark.parametrize("says", [True, False])
async def test_a_process_that_answers_nonsense_again_and_again_is_quarantined(says):
    settings = section()
    async with trainer(settings, vocabulary=0 if says else Lying.vocabulary) as one:
        await one.publish(0)
        engine = Lying(3, every=3)
        engine.says = says
        bad = Worker("bad", engine, settings, one.address)
        nonsense = "group {} sample 0 has token id 1000001, which must be from 0 to 1000000"
        tickets: dict[int, Any] = {}
        for number in range(2 * MAX_NONSENSE):
            await until(lambda: one.held("bad") == 0 or bad.life.done())
            tickets[number] = one.dispatcher.submit(group(number))
            if number % 2 == 0:
                await tickets[number]  # what is sound is used, until it is too much
            else:
                await until(lambda n=number: len(one.lost) == (n + 1) // 2)
                # Its groups go to another worker, of which there is none.
                tickets[number].cancel()
        with pytest.raises(WorkerError, match="quarantined: 3 of its replies were invalid"):
            await bad.life
        told = f"3 of its replies were invalid, the last one: bad: {nonsense.format(5)}"
        assert one.quarantined == [("bad", told)]
        assert one.lost == [
            f"bad: bad: {nonsense.format(1)}",
            f"bad: bad: {nonsense.format(3)}",
            f"bad: quarantined: {told}",
        ]


async def test_a_prompt_outside_of_the_vocabulary_is_rejected_everywhere():
    settings = section()
    async with trainer(settings) as one:
        await one.publish(0)
        worker = Worker("w", Lying(3, every=3), settings, one.address)
        await until(lambda: one.held("w") == 0)
        assert one.fleet.workers["w"].capabilities.vocabulary == Lying.vocabulary
        prompt = np.array([5, Lying.vocabulary], np.int32)
        wrong = dataclasses.replace(group(0), context=prompt)
        why = "w rejected a call: INVALID_ARGUMENT: group 0: the prompt has token id 1000001"
        with pytest.raises(WorkerError, match=why):
            await one.dispatcher.submit(wrong)
        assert worker.engine.asked == [] and one.lost == []
        await worker.leave()


class Holding(Counting):
    """Answers nothing, and says with each heartbeat that all is well."""

    said = 0

    def progress(self) -> dict[Attempt, int]:
        self.said += 1
        return {(one.key, one.attempt): self.said for one in self.asked}

    async def _group(self, request: Request, on_reply: Callable[..., None]) -> None:
        await asyncio.Event().wait()


async def test_a_request_with_progress_but_no_end_goes_to_another_worker():
    settings = section({"group_s": 0.5})
    short = SamplingParams(max_new_tokens=8, stop_ids=(STOP,))
    async with trainer(settings) as one:
        await one.publish(0)
        bad = Worker("bad", Holding(3), settings, one.address)
        await until(lambda: one.held("bad") == 0)
        held = one.dispatcher.submit(dataclasses.replace(group(0), sampling=short))
        await until(lambda: bad.engine.asked)
        good = Worker("good", Counting(3), settings, one.address)
        await until(lambda: one.held("good") == 0)
        for number in (1, 2, 3):  # the pace of others shows what its tokens may take
            await one.dispatcher.submit(dataclasses.replace(group(number), sampling=short))
        completed = await asyncio.wait_for(held, LIMIT_S)
        assert [worker.name for worker in completed.workers] == ["good"]
        (reason,) = (why for number, attempt, why in one.again if number == 0)
        assert re.match(r"no end after [\d.]+ s, although progress was reported: at the", reason)
        fake = one.fleet.workers["bad"]
        assert fake.suspicion["overdue"].startswith("group 0 had no end after")
        assert one.fleet.workers["good"].suspicion == {} and one.lost == []
        await bad.leave()
        await good.leave()
