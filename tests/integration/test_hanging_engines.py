"""Engines that hang while their process lives, and engines that are only slow."""

import asyncio
from typing import Any

from worker_harness import Counting, Worker, group, section, trainer, until

from rlax_plugin.base.types import Key, Request, Sampled
from rlax_plugin.ports.loaded import Loaded


class Hanging(Counting):
    """Once it hangs it generates nothing more; heartbeats go on."""

    hangs = False
    generated = 0

    def progress(self) -> dict[tuple[Key, int], int]:
        return {(r.key, r.attempt): self.generated for r in self.asked}

    def _sampled(self, request: Request, index: int, generated: list[int], done: bool) -> Sampled:
        self.generated += 1
        return super()._sampled(request, index, generated, done)

    async def _group(self, request: Request, on_reply: Any) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        await super()._group(request, on_reply)


async def test_groups_of_an_engine_that_hangs_go_to_another_worker_by_name_of_the_deadline():
    settings = section({"group_s": 0.5})
    async with trainer(settings) as one:
        await one.publish(0)
        hung = Worker("hung", Hanging(5), settings, one.address)
        hung.engine.hangs = True
        await until(lambda: one.held("hung") == 0)
        tickets = [one.dispatcher.submit(group(number)) for number in range(3)]
        await until(lambda: len(hung.engine.asked) == 3)
        # 1 s of its own time, several times group_s, and it comes further all the time.
        slow = Worker("slow", Hanging(200), settings, one.address)
        for ticket in tickets:
            asked, samples, workers = await ticket
            assert asked.attempt == 2 and [w.name for w in workers] == ["slow"]
            assert len(samples[0].tokens) == 200
        assert len(one.again) == 3 and one.lost == []
        for _, attempt, why in one.again:
            assert attempt == 2 and "rlax.deadlines.group_s is 0.5" in why
        await until(lambda: hung.engine.cancelled == 1)  # its call was ended
        for worker in (hung, slow):
            await worker.leave()


async def test_a_swap_waits_for_running_groups_as_long_as_they_come_further(caplog):
    """``weights_s`` bounds the loading, not the groups that ``finish`` lets end before."""

    class Swapping(Hanging):
        tries = 0

        async def load(self, version: Any) -> Loaded:
            self.tries += 1
            if version.version:
                await self.ended.wait()
            return await super().load(version)

        def health(self) -> dict[str, float]:
            return {"tokens_total": float(self.generated)}

    settings = section({"group_s": 0.2, "weights_s": 0.2})
    async with trainer(settings) as one:
        await one.publish(0)
        engine = Swapping(150)
        engine.ended = asyncio.Event()
        worker = Worker("w", engine, settings, one.address)
        await until(lambda: one.held("w") == 0)
        ticket = one.dispatcher.submit(group(0))
        await until(lambda: engine.asked)
        await one.publish(1)
        asked, *_ = await ticket
        assert asked.attempt == 1 and not worker.life.done() and one.held("w") == 0
        assert engine.tries == 2 and "weights_s" not in caplog.text
        engine.ended.set()
        await until(lambda: one.held("w") == 1)
        # And nothing waits for ever: a swap that hangs while nothing is generated.
        engine.ended.clear()
        await one.publish(2)
        await until(lambda: engine.tries > 3)
        assert "rlax.deadlines.weights_s" in caplog.text
        await worker.leave()
