"""Whatever order things happen in, the records say the truth and the prompts come in seed order.

The flow, its state, recorder, journal, ledger, recovery and audit are the real ones. Hypothesis
plays workers, rewards, the trainer and its machine: groups end in any order, workers are lost or
quarantined, rewards are slow or fail, groups are rejected, versions come late, and the process dies
at any moment, with or without its local disk, and resumes from its last checkpoint or, where that
cannot be read, from the one before it. Samples that no resume needs are removed on the way or kept.
Episodes have one turn, or several in one or two trajectories; environments fail, lose their
process, and do something else after a restart.
Batches are of a number of groups or of tokens, and packed into more or fewer rows than that takes.
"""

import asyncio
import tempfile
from pathlib import Path

import numpy as np
from flow_harness import Harness, InOrder, MixedOnly, Told, settle
from flow_tools import PLANS, Tool, answer_of, is_part
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rlax_plugin.config import Retention
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.retention import Retaining
from rlax_plugin.tools.commands.audit import audit

REWARDS = st.sampled_from([(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (None, 1.0), (None, None)])
WORKERS = st.sampled_from(["a", "b", "c"])
LENGTHS = st.sampled_from([1, 2, 5, 8])  # of both samples of a group; rows have 17
BATCHES = st.sampled_from(
    [
        {},
        {"rows": 2, "sequences_per_row": 4},  # by length, one group or more
        {"rows": 2, "sequences_per_row": 3},
        {"tokens": 12, "rows": 6},
        {"tokens": 30, "rows": 3, "sequences_per_row": 4},  # either may be reached first
    ]
)
# It never rejects groups of which the first sample fails and the second passes: batches come.
SCREENING = st.sampled_from([{}, {"pilots": 1, "min_mixed_probability": 0.25}])
MOODS = st.sampled_from([0, 0, 1, 2])  # of an environment, see ``Tool``
MEMORY = Path("/dev/shm")  # runs are many, small, and synced to disk at every turn


class Run(RuleBasedStateMachine):
    """One run, over any number of processes.

    Attributes:
      episodes: they have several turns.
      begins: see ``Environment``.
    """

    episodes, begins = False, "prompt"

    @initialize(
        bounds=st.sampled_from([(1, 1), (1, 2), (2, 3), (1, 4)]),
        oversample=st.sampled_from([1.0, 1.5, 3.0]),
        deterministic=st.booleans(),
        batches=BATCHES,
        screening=SCREENING,
        removes=st.booleans(),
    )
    def begin(self, bounds, oversample, deterministic, batches, screening, removes):
        self.kept = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None)
        self.directory = Path(self.kept.name)
        self.loop = asyncio.new_event_loop()
        self.settings = {
            "j": bounds[0],
            "k": bounds[1],
            "filters": [MixedOnly()],
            "refill": 1000,
            "oversample": oversample,
            "batches": batches,
            "screening": {} if self.episodes else screening,
        }
        if bounds == (1, 1) and oversample == 1.0:
            self.settings["deterministic"] = deterministic
        # A group of several trajectories in each sample might be too large for packed rows.
        self.tool = Tool(PLANS[:4] if batches else PLANS)
        self.told: list[Told] = []
        if self.episodes:
            self.settings |= {"rewards": {}, "play": self.tool.play, "told": self.told}
            self.settings["begins"] = self.begins
        self.moods = {0}
        self.recorded: dict[tuple[int, int], dict] = {}  # group and attempt -> place -> answer
        self.void: set[int] = set()  # answers that must not train
        self.removes, self.checkpoints = removes, list[int]()
        self.fell_back = False
        self.trained: dict[int, list[int]] = {}  # step -> groups, as the trainer saw them
        self.start()

    @property
    def checkpoint_step(self):
        return self.checkpoints[-1] if self.checkpoints else 0

    def start(self):
        """A process starts, from the trainer's last checkpoint."""
        self.run_ = Harness(self.directory, step=self.checkpoint_step, **self.settings)
        self.step = self.checkpoint_step
        self.waiting: asyncio.Task | None = None
        self.unpublished: list[int] = []
        self.do(self._start())

    async def _start(self):
        self.recovery = await self.run_.start()
        self.run_.answers.slow_rewards = True
        for key, turn in self.recovery.turns:
            one = self.run_.run_state.open.get(key.group)
            if one is not None:  # else it is open once recorded batches are applied
                place = key.sample, key.trajectory, key.turn
                known = self.recorded.setdefault((key.group, one.attempt), {})
                known[place] = answer_of(turn)
        await settle()
        totals = self.run_.run_state.totals
        ended = totals.trained + sum(totals.rejected.values()) + sum(totals.dropped.values())
        assert totals.issued == ended + len(self.run_.run_state.open) + len(
            self.run_.run_state.ready
        )

    def act(self, function, *arguments):
        """Calls something on the event loop, and lets everything happen that follows from it."""

        async def call():
            function(*arguments)
            await settle()

        self.do(call())

    def do(self, work):
        result = self.loop.run_until_complete(work)
        assert not self.run_.errors, self.run_.errors
        assert not self.run_.supervision.failed
        return result

    def pick(self, things, data):
        return data.draw(st.sampled_from(sorted(things)))

    # --- workers and rewards -------------------------------------------------------------------

    @precondition(lambda self: self.run_.answers.open)
    @rule(data=st.data(), rewards=REWARDS, worker=WORKERS, newest=st.booleans(), length=LENGTHS)
    def a_group_is_generated(self, data, rewards, worker, newest, length):
        group = self.pick(self.run_.answers.open, data)
        request, _ = self.run_.answers.open[group]
        if not self.can_generate(group):
            return
        version = self.run_.latest if newest else request.min_version
        self.act(self.run_.answers.generate, group, version, rewards, worker, length)

    @precondition(lambda self: self.run_.answers.open)
    @rule(newest=st.booleans())
    def workers_begin_all_groups(self, newest):
        answers = self.run_.answers
        for group in sorted(answers.open.keys() - answers.begun.keys()):
            if self.can_generate(group):
                oldest = answers.open[group][0].min_version
                self.act(answers.begin, group, self.run_.latest if newest else oldest)

    @precondition(lambda self: self.run_.answers.too_old())
    @rule(data=st.data())
    def a_worker_gives_up_what_is_too_old(self, data):
        answers = self.run_.answers
        self.act(answers.give_up, self.pick(answers.too_old(), data))
        for group in sorted(answers.open.keys() - answers.begun.keys()):
            self.act(answers.wait_for_newer, group)

    @precondition(lambda self: self.run_.answers.unscored)
    @rule(data=st.data())
    def a_group_is_scored(self, data):
        self.act(self.run_.answers.reward, self.pick(self.run_.answers.unscored, data))

    @precondition(lambda self: self.run_.answers.later)
    @rule(data=st.data(), worker=WORKERS, newest=st.booleans(), length=LENGTHS)
    def a_later_turn_is_generated(self, data, worker, newest, length):
        key = self.pick(self.run_.answers.later, data)
        request, _ = self.run_.answers.later[key]
        if request.min_version <= self.run_.latest:
            version = self.run_.latest if newest else request.min_version
            self.act(self.run_.answers.generate_turn, key, version, worker, length)

    @precondition(lambda self: self.run_.answers.later)
    @rule(data=st.data())
    def a_worker_is_lost_with_a_later_turn(self, data):
        self.act(self.run_.lose_worker_of_turn, self.pick(self.run_.answers.later, data))

    @precondition(lambda self: self.run_.answers.playing)
    @rule(data=st.data())
    def the_process_of_an_environment_ends(self, data):
        place = self.pick(self.run_.answers.playing, data)
        self.act(self.run_.answers.playing[place].cancel)

    def can_generate(self, group):
        """Whether a version that is new enough is there.

        A spare that is issued again, because its worker was lost, waits for the version that the
        trainer is making of a batch it has. More it must not wait for: that might be for ever.
        """
        request, _ = self.run_.answers.open[group]
        assert request.min_version <= max(self.run_.latest, self.run_.run_state.next_step - 1)
        return request.min_version <= self.run_.latest

    @rule(worker=WORKERS, rewards=REWARDS, length=LENGTHS)
    def everything_is_generated_and_scored(self, worker, rewards, length):
        for group in sorted(self.run_.answers.open):
            if self.can_generate(group):
                self.act(
                    self.run_.answers.generate, group, self.run_.latest, rewards, worker, length
                )
        while later := sorted(self.run_.answers.later):
            for key in later:
                version = self.run_.latest
                if key not in self.run_.answers.later:
                    # A batch is complete, and its spares are dropped or issued again for the next.
                    assert key.group not in self.run_.run_state.open.keys() - self.run_.answers.open
                    continue
                if self.run_.answers.later[key][0].min_version > version:
                    return
                self.act(self.run_.answers.generate_turn, key, version, worker, length)
        for group in sorted(self.run_.answers.unscored):
            self.act(self.run_.answers.reward, group)

    @precondition(lambda self: self.run_.answers.open)
    @rule(data=st.data())
    def a_worker_is_lost(self, data):
        self.act(self.run_.lose_worker, self.pick(self.run_.answers.open, data))

    @rule(worker=WORKERS)
    def a_worker_is_quarantined(self, worker):
        if self.waiting is not None:
            self.look()  # what is in a batch by now trains
        self.act(self.run_.quarantine, worker)
        if self.run_.flow.live:
            self.events_reach_the_ledger()
            self.void |= {
                number
                for number, one in enumerate(self.told, 1)
                if one.worker == worker and one.group in self.run_.run_state.open
            }

    # --- trainer -------------------------------------------------------------------------------

    @precondition(lambda self: self.waiting is None and len(self.unpublished) < 2)
    @rule()
    def the_trainer_asks_for_a_batch(self):
        self.waiting = self.loop.create_task(self.run_.flow.batch(self.step + 1))
        self.look()

    @precondition(lambda self: self.waiting is not None)
    @rule()
    def look(self):
        """Sees whether the batch has come; its commit runs on a thread."""
        self.do(self._settled())
        if self.waiting is None or not self.waiting.done():
            return
        batch, _ = self.waiting.result()
        self.waiting, self.step = None, self.step + 1
        assert batch.step == self.step
        ids = [group.id for group in batch.groups]
        # What was handed out once is handed out again, however the process died.
        assert self.trained.setdefault(self.step, ids) == ids
        k = self.settings["k"]
        assert all(1 <= self.step - group.oldest_version <= k for group in batch.groups)
        self.unpublished.append(self.step)
        for group in batch.groups if self.told else ():
            self.check(group)

    def check(self, group):
        """What trains is what was generated, in one play, and by workers that are trusted."""
        recorded = self.recorded.get((group.id, group.attempt), {})
        for episode in group.episodes:
            given, by_play = {}, self.begins == "play"
            for number, trajectory in enumerate(episode.trajectories):
                if by_play:  # trajectory 0 may have no turn
                    number = int(trajectory.turns[0].given[0] == 3)
                context = np.zeros(0, np.int32)
                for place, turn in enumerate(trajectory.turns):
                    answer = answer_of(turn)
                    context = np.concatenate([context, turn.given])
                    assert np.array_equal(self.told[answer - 1].context, context)
                    assert answer not in self.void or self.recovery.holds(self.step)
                    known = recorded.get((episode.index, number, place), answer)
                    assert known == answer or ((place or number or by_play) and self.moods != {0})
                    context = np.concatenate([context, turn.sampled.tokens])
                turns = trajectory.turns[not (number or by_play) :]
                given[number] = [int(token) for turn in turns for token in turn.given]
            plays = [self.tool.given(group.prompt, episode.index, mood) for mood in self.moods]
            if by_play:
                plays = [{t: tokens for t, tokens in play.items() if tokens} for play in plays]
            assert any(is_part(given, play, episode.ended) for play in plays), (given, plays)

    async def _settled(self):
        if self.recovery.holds(self.step + 1):
            await asyncio.wait_for(self.waiting, 60)
        await settle()
        # The commit, if there is one, is ahead of this on the recorder's thread.
        await self.run_.recorder.call(lambda: None)
        await settle()

    @rule(length=LENGTHS)
    def a_batch_comes_if_all_goes_well(self, length):
        """However it came to this, nothing waits for what nobody will do."""
        while self.unpublished:
            self.act(self.run_.publish, self.unpublished.pop(0))
        step = self.step
        if self.waiting is None:
            self.the_trainer_asks_for_a_batch()
        for _ in range(30):  # at least one sample of a token each time
            if self.step > step:
                return
            self.everything_is_generated_and_scored("a", (0.0, 1.0), length)
            self.look()
        raise AssertionError(f"the batch of step {step + 1} does not come")

    @precondition(lambda self: self.unpublished)
    @rule()
    def a_version_is_published(self):
        self.act(self.run_.publish, self.unpublished.pop(0))

    @precondition(lambda self: self.waiting is None and self.step > self.checkpoint_step)
    @rule(commits=st.booleans())
    def the_trainer_saves_a_checkpoint(self, commits):
        self.do(self.run_.checkpoint(self.step))
        if self.removes:
            self.remove()
        if commits:  # else the process dies between snapshot and checkpoint, sooner or later
            self.checkpoints.append(self.step)
            self.fell_back = False

    def remove(self):
        retention = Retention(samples_steps=1)
        work = Retaining(retention, self.run_.files, lambda: self.checkpoints)
        work.note_checkpoints()
        while work.remove_some():
            pass

    # --- the machine ---------------------------------------------------------------------------

    @rule()
    def events_reach_the_ledger(self):
        self.do(self.run_.recorder.flush())

    @precondition(lambda self: self.run_.answers.open or self.run_.answers.later)
    @rule(worker=WORKERS, length=LENGTHS, mood=MOODS)
    def the_process_dies_between_turns(self, worker, length, mood):
        answers = self.run_.answers
        for group in sorted(answers.open):
            if self.can_generate(group):
                self.act(answers.generate, group, self.run_.latest, (0.0, 1.0), worker, length)
        for key in sorted(answers.later)[::2]:
            asked = answers.later.get(key)  # none: see ``everything_is_generated_and_scored``
            if asked is not None and asked[0].min_version <= self.run_.latest:
                self.act(answers.generate_turn, key, self.run_.latest, worker, length)
        self.events_reach_the_ledger()
        self.the_process_dies(False, False, mood)

    @rule(disk_is_lost=st.booleans(), checkpoint_is_damaged=st.booleans(), mood=MOODS)
    def the_process_dies(self, disk_is_lost, checkpoint_is_damaged, mood):
        self.end(killed=True)
        self.tool.mood = mood
        self.moods.add(mood)
        if checkpoint_is_damaged and len(self.checkpoints) > 1 and not self.fell_back:
            self.checkpoints.pop()
            self.fell_back = True
        if disk_is_lost:
            self.recorded.clear()
            for path in self.directory.glob("ledger.sqlite*"):
                path.unlink()
        self.start()

    def end(self, killed):
        if killed:  # what no timer has flushed is lost
            self.do(self.run_.recorder.call(self.run_.ledger.close))
        if self.waiting is not None:
            self.waiting.cancel()
        self.loop.run_until_complete(self._end())
        assert killed or not self.run_.errors, self.run_.errors

    async def _end(self):
        await self.run_.supervision.close()
        await asyncio.gather(*[t for t in [self.waiting] if t], return_exceptions=True)
        self.run_.recorder.close()

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        with self.kept:
            if self.waiting is None and self.run_.flow.live:
                self.do(self.run_.flow.commit())
            self.end(killed=False)
            self.loop.close()
            if not self.run_.files.names("journal"):
                return  # it died before it had anything to write down
            report = audit(self.run_.files)
            assert report.violation is None, report.violation
            issued = [
                prompt
                for segment, _ in journal.read(self.run_.files)
                for event in segment.events
                if isinstance(event, ev.Issued)
                for prompt in event.prompts
            ]
            rng = np.random.default_rng([0, 1])
            assert issued == [f"p{i}" for i in InOrder().choose(range(10), None, rng, len(issued))]


class RunOfEpisodes(Run):
    episodes = True


class RunOfOwnBeginnings(RunOfEpisodes):
    """The environment begins its episodes; some end without a turn."""

    begins = "play"
