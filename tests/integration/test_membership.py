"""Who is a member of a run: names, processes that answer nonsense, engines that hang.

Over real gRPC; what concerns processes is tried with real ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import CONFIG, Run, free_port, plugins, process, rows
from test_workers import Counting, Worker, group, member, run, section, trainer, until

from rlax_plugin.commands.audit import audit
from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import ConfigError, WorkerError
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles
from rlax_plugin.rollouts.fleet import MAX_NONSENSE
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import GroupRequest, Rollout


def with_deadlines(settings: RlaxSection, **deadlines: float) -> RlaxSection:
    changed = settings.deadlines.model_copy(update=deadlines)
    return settings.model_copy(update={"deadlines": changed})


# --- names ---------------------------------------------------------------------------------------


def test_a_name_belongs_to_the_process_that_was_heard_last():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            holder, newcomer = member(settings, one.address), member(settings, one.address)
            newcomer._process = "another"
            await holder.register()
            beats = asyncio.ensure_future(holder.heartbeat())
            watch = asyncio.ensure_future(one.fleet.watch())
            with pytest.raises(ConfigError, match=r"--name = 'w': is already used by a worker"):
                await newcomer.register()
            assert one.lost == [] and one.fleet.workers["w"].process == holder._process
            await newcomer.leave()  # which is none of the holder's business
            await holder.register()  # the same process may always register again
            assert one.lost == ["w: registered again"]
            watch.cancel()
            beats.cancel()

    run(main)


def test_a_restarted_worker_waits_until_its_predecessor_counts_as_lost():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            killed, restarted = member(settings, one.address), member(settings, one.address)
            restarted._process = "another"
            watch = asyncio.ensure_future(one.fleet.watch())
            await killed.register()  # and was killed: no heartbeat follows
            await restarted.register()
            watch.cancel()
            assert one.fleet.workers["w"].process == "another"
            assert len(one.lost) == 1
            beats = asyncio.ensure_future(restarted.heartbeat())
            with pytest.raises(ConfigError, match="--name"):  # and was only paused
                await killed.heartbeat()
            assert one.fleet.workers["w"].process == "another" and len(one.lost) == 1
            beats.cancel()

    run(main)


def test_a_pause_of_the_trainer_gives_no_name_away():
    """What the holder sent meanwhile may be read behind another one's registration."""

    async def main():
        settings = section()
        async with trainer(settings) as one:
            holder = member(settings, one.address)
            await holder.register()
            one.fleet.workers["w"].last_seen -= 10 * settings.deadlines.lost_s
            request = pb.RegisterRequest(
                worker="w", address="127.0.0.1:1", slots=8, config_hash="abc", process="another"
            )
            reply = await one.fleet.Register(request, None)
            assert reply.name_taken and not reply.accepted
            assert (await holder.report()).known and one.lost == []

    run(main)


def test_two_live_processes_of_one_name_do_not_end_the_run(tmp_path):
    settings = (
        "steps=4000",
        "rlax.launcher={name: static}",
        "rlax.evaluation.problems=0",
        "rlax.rollouts.engine.token_s=0.01",
        "rlax.deadlines.heartbeats_lost=3",  # a name is free again soon
        f"rlax.network.port={(port := free_port())}",
    )
    serve = ("serve", CONFIG, *settings, "--controller", f"127.0.0.1:{port}", "--name", "one")
    training = Run(tmp_path, *settings)

    def another(steps: int) -> None:
        before = len(training.steps())
        training.until(lambda: len(training.steps()) >= before + steps, f"{steps} more steps")

    with ExitStack() as processes:
        processes.callback(training.process.kill)
        first = processes.enter_context(process(tmp_path, "first", *serve))
        another(2)
        second = processes.enter_context(process(tmp_path, "second", *serve))
        both = {"first": first, "second": second}

        def ended() -> list[str]:
            return [name for name, one in both.items() if one.poll() is not None]

        # The second one; or the first, if it stalls for a second just then.
        training.until(ended, "the end of one of them")
        (loser,) = ended()
        said = (tmp_path / f"{loser}.log").read_text()
        status = both.pop(loser).returncode
        assert status == 2 and "--name = 'one': is already used by a worker" in said, said
        another(1)
        assert not ended()
        for survivor in both.values():
            survivor.kill()  # and a third one takes its name over
        third = processes.enter_context(process(tmp_path, "third", *serve))
        another(3)
        assert third.poll() is None
        training.process.send_signal(signal.SIGINT)
        status, out = training.end()
    assert status == 130 and "worker one lost" in out, out


# --- nonsense ------------------------------------------------------------------------------------


class Lying(Counting):
    """Every second group has a token beyond the vocabulary."""

    vocabulary = 10**6 + 1

    def _rollout(
        self, request: GroupRequest, index: int, generated: list[int], done: bool
    ) -> Rollout:
        sound = super()._rollout(request, index, generated, done)
        if request.group_id % 2 == 0:
            return sound
        tokens = np.array([self.vocabulary, *sound.tokens[1:]], np.int32)
        return dataclasses.replace(sound, tokens=tokens)


def test_a_process_that_answers_nonsense_again_and_again_is_quarantined():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            await one.publish(0)
            bad = Worker("bad", Lying(3, every=3), settings, one.address)
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

    run(main)


def test_a_prompt_outside_of_the_vocabulary_is_rejected_everywhere():
    async def main():
        settings = section()
        async with trainer(settings) as one:
            await one.publish(0)
            worker = Worker("w", Lying(3, every=3), settings, one.address)
            await until(lambda: one.held("w") == 0)
            assert one.fleet.workers["w"].vocabulary == Lying.vocabulary
            prompt = np.array([5, Lying.vocabulary], np.int32)
            wrong = dataclasses.replace(group(0), prompt_tokens=prompt)
            why = "w rejected: INVALID_ARGUMENT: group 0: the prompt has token id 1000001"
            with pytest.raises(WorkerError, match=why):
                await one.dispatcher.submit(wrong)
            assert worker.engine.asked == [] and one.lost == []
            worker.terminated.set()
            await worker.life

    run(main)


def test_a_worker_that_lies_costs_a_run_three_replies(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    training = Run(
        tmp_path,
        "steps=1000",
        plugins("lying_engine"),
        "rlax.rollouts.engine={name: lying, token_s: 0.005}",
        "rlax.staleness.max_staleness=3",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
        "rlax.objective.old_policy=proximal",
        "rlax.evaluation.problems=0",
        "rlax.trainer.train_s=0.1",
        "rlax.launcher.max_restarts=0",
    )
    log = training.dir / "logs/local-1.log"
    training.until(
        lambda: log.exists() and "worker local-1 failed" in log.read_text(), "its last lie"
    )
    training.process.send_signal(signal.SIGINT)
    status, out = training.end()
    assert status == 130, out
    assert re.search(
        r"local-1 is quarantined: 3 of its replies were invalid, .* has log-probs above 0", out
    )
    assert out.count("worker local-1 lost: ") == MAX_NONSENSE
    # What it had given and was not trained by then is dropped, and the rest is another's.
    files = RunFiles(training.dir)
    events = [e for segment, _ in journal.read(files) for e in segment.events]
    dropped = {e.group for e in events if isinstance(e, ev.Dropped)}
    assert not dropped & {row["group_id"] for row in rows(training.dir / "batches")}
    assert audit(files).violation is None


# --- engines that hang ---------------------------------------------------------------------------


class Hanging(Counting):
    """Once it hangs it generates nothing more; heartbeats go on."""

    hangs = False
    generated = 0

    def progress(self) -> dict[tuple[int, int], int]:
        return {(r.group_id, r.attempt): self.generated for r in self.asked}

    def _rollout(
        self, request: GroupRequest, index: int, generated: list[int], done: bool
    ) -> Rollout:
        self.generated += 1
        return super()._rollout(request, index, generated, done)

    async def _group(self, request: GroupRequest, on_group: Any) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        await super()._group(request, on_group)


def test_groups_of_an_engine_that_hangs_go_to_another_worker_by_name_of_the_deadline():
    async def main():
        settings = with_deadlines(section(), group_s=0.5)
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
                asked, rollouts, workers = await ticket
                assert asked.attempt == 2 and [w.name for w in workers] == ["slow"]
                assert len(rollouts[0].tokens) == 200
            assert len(one.again) == 3 and one.lost == []
            for _, attempt, why in one.again:
                assert attempt == 2 and "rlax.deadlines.group_s is 0.5" in why
            await until(lambda: hung.engine.cancelled == 1)  # its call was ended
            for worker in (hung, slow):
                worker.terminated.set()
                await worker.life

    run(main)


def test_groups_wait_for_weights_as_long_as_these_are_loaded():
    class SlowToLoad(Hanging):
        async def load_weights(self, version: Any) -> None:
            if version.version:
                await asyncio.sleep(1.0)  # several times group_s
            await super().load_weights(version)

    async def main():
        settings = with_deadlines(section(), group_s=0.3)
        async with trainer(settings) as one:
            await one.publish(0)
            worker = Worker("w", SlowToLoad(5), settings, one.address)
            await until(lambda: one.held("w") == 0)
            await one.publish(1)

            async def generate(requests: Any, on_group: Any) -> None:
                while worker.engine.version < 1:
                    await asyncio.sleep(0.01)
                await Hanging.generate(worker.engine, requests, on_group)

            worker.engine.generate = generate
            asked, rollouts, _ = await one.dispatcher.submit(group(0, min_version=1))
            assert asked.attempt == 1 and one.again == []
            assert set(rollouts[0].versions.tolist()) == {1}
            worker.terminated.set()
            await worker.life

    run(main)


def test_a_swap_waits_for_running_groups_as_long_as_they_come_further(caplog):
    """``weights_s`` bounds the loading, not the groups that ``finish`` lets end before."""

    class Swapping(Hanging):
        tries = 0

        async def load_weights(self, version: Any) -> None:
            self.tries += 1
            if version.version:
                await self.ended.wait()
            await super().load_weights(version)

        def health(self) -> dict[str, float]:
            return {"tokens_total": float(self.generated)}

    async def main():
        settings = with_deadlines(section(), group_s=0.2, weights_s=0.2)
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
            worker.terminated.set()
            await worker.life

    run(main)
