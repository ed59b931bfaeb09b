"""A real flow with its state, recorder and journal; a test answers for workers and rewards."""

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import rlax_environments
import yaml
from part_stubs import SourceStub
from waiting import turns

from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.endings import Ending
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Key, Prompt, Request, Sampled, Score, Unscored
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.data.prompts.table import JoinedPrompts
from rlax_plugin.ports.environment import Outcome
from rlax_plugin.ports.manager import Manager
from rlax_plugin.rollout.episodes.runner import EpisodeRunner
from rlax_plugin.rollout.fleet.dispatch import Completed
from rlax_plugin.rollout.fleet.newest import NewestVersion
from rlax_plugin.rollout.fleet.requests import sample_seed, sampling_params
from rlax_plugin.rollout.fleet.tickets import GivenUp
from rlax_plugin.run.controller.batch_rule import BatchRule
from rlax_plugin.run.controller.buffer import Buffer
from rlax_plugin.run.controller.flow import Flow
from rlax_plugin.run.controller.issuing import Issuing
from rlax_plugin.run.controller.limits import KeptGuard
from rlax_plugin.run.controller.observers import Observers
from rlax_plugin.run.controller.staleness import Staleness
from rlax_plugin.run.controller.trips import Trips
from rlax_plugin.run.controller.turns import Turns
from rlax_plugin.run.start.prior import about_rates
from rlax_plugin.run.state.ledger import Ledger
from rlax_plugin.run.state.recorder import Recorder
from rlax_plugin.run.state.recovery import Recovery
from rlax_plugin.run.state.run_history import RunHistory
from rlax_plugin.run.state.run_state import RunState
from rlax_plugin.run.state.snapshots import snapshot, write_snapshot
from rlax_plugin.training.objective.advantages import per_group


class Source(SourceStub):
    """Ten prompts, p0 to p9, of one token each, all with the right answer 7, 7, 1."""

    def answer_tokens(self, prompt):
        return np.array([7, 7, 1], np.int32)

    def prompts(self, split):
        return [Prompt(f"p{i}", np.array([i], np.int32), str(i), str(i)) for i in range(10)]


class InOrder:
    """Each choice takes one number from the generator, however many are asked for at once."""

    def choose(self, prompts, rates, rng, count):
        return [int(rng.integers(len(prompts))) for _ in range(count)]

    def state(self):
        return {}

    def restore(self, state):
        pass


class MixedOnly:
    def reject(self, group):
        return None if group.rewards.min() < group.rewards.max() else "all rewards equal"


class Process:
    """Of a worker."""

    trusted = True


class Told(NamedTuple):
    """An answer."""

    group: int
    worker: str
    context: np.ndarray


class Answers:
    """Stands in for dispatcher and reward pool.

    Args:
      rewards: of each sample, by the seed of its first turn; what is known of earlier processes.
      play: plays an episode, as an environment does.

    Attributes:
      open: group -> its request and the future that waits for its samples.
      later: key of a later turn -> the same of it.
      unscored: group -> the future that waits for its scores; only with ``slow_rewards``, else
        they come at once.
      playing: group and sample -> the task that plays the episode.
      begun: group -> the version with which a worker has begun it; of others nothing is known.
      oldest: version that can train, as the flow has told it.
      steps: of each scoring, the step whose weights count.
      shown: reward of a demonstration, which no worker has sampled; None: it has none.
      told: what was ever answered; what is generated with its n-th answer has log-probs of -n.
    """

    vocabulary = 0
    waits_for_slots = False

    def __init__(self, rewards=None, play=None, told=None):
        self.told: list[Told] = [] if told is None else told
        self.open: dict[int, tuple[Request, asyncio.Future[Completed]]] = {}
        self.later: dict[Key, tuple[Request, asyncio.Future[Completed]]] = {}
        self.unscored: dict[int, asyncio.Future[None]] = {}
        self.playing: dict[tuple[int, int], asyncio.Task[Outcome | Unscored]] = {}
        self._rewards: dict[int, tuple[int, float | None]] = {} if rewards is None else rewards
        self._play = play
        self.slow_rewards = False
        self.steps: list[int | None] = []
        self.shown: float | None = 1.0
        self.begun: dict[int, int] = {}
        self.oldest = 0
        self.workers: dict[str, Process] = {}  # by name, of the process that lives now

    def submit(self, request, expected_tokens=0.0):
        future = asyncio.get_running_loop().create_future()
        first = request.key.sample is None
        waiting, place = (self.open, request.key.group) if first else (self.later, request.key)
        waiting[place] = (request, future)

        def forget(_):
            if waiting.get(place, (None, None))[1] is future:
                del waiting[place]
                self.begun.pop(place, None)

        future.add_done_callback(forget)
        return future

    def give_up_older(self, version):
        self.oldest = version

    def begin(self, group_id, version):
        """A worker begins to generate a group."""
        request, _ = self.open[group_id]
        assert version >= request.min_version
        self.begun[group_id] = version

    def too_old(self):
        """Groups that their worker gives up, once it has heard what is too old."""
        return sorted(g for g, version in self.begun.items() if version < self.oldest)

    def give_up(self, group_id, tokens=(1, 0)):
        """The worker ends a group of which it has so many tokens."""
        _, future = self.open.pop(group_id)
        del self.begun[group_id]
        future.set_exception(GivenUp(tokens))

    def wait_for_newer(self, group_id):
        """What is not begun when the worker hears what is too old begins with nothing older."""
        request, future = self.open[group_id]
        newer = max(request.min_version, self.oldest)
        self.open[group_id] = (dataclasses.replace(request, min_version=newer), future)

    async def play(self, prompt, played) -> Outcome | Unscored:
        place = played.key.group, played.index
        while True:
            task = self.playing[place] = asyncio.ensure_future(self._play(prompt, played))
            try:
                return await task
            except asyncio.CancelledError:
                if asyncio.current_task().cancelling():
                    task.cancel()
                    raise
                played.begin_again()  # only its process was lost
            finally:
                if self.playing.get(place) is task:
                    del self.playing[place]

    async def score(self, prompt, episodes, *, step=None) -> list[Score | Unscored]:
        if not episodes:
            return []
        self.steps.append(step)
        told = [self._rewards[next(e.sampled).seed] for e in episodes]
        if not any(e.workers for e in episodes):
            told = [(group, self.shown) for group, _ in told]
        if self.slow_rewards:
            future = self.unscored[told[0][0]] = asyncio.get_running_loop().create_future()
            await future
        return [
            Unscored("it raised") if reward is None else Score(reward, (reward,))
            for _, reward in told
        ]

    def generate(self, group_id, version, rewards=(0.0, 1.0), worker="w", length=2):
        """Answers a group; one version for all tokens, ``length`` tokens in each sample.

        Args:
          rewards: of all samples of the group, also of those that are not asked for now.
        """
        request, future = self.open.pop(group_id)
        version = self.begun.pop(group_id, version)
        seeds = [sample_seed(0, "train", group_id, i) for i in range(len(rewards))]
        assert set(request.seeds) <= set(seeds)
        self._rewards |= {
            seed: (group_id, reward) for seed, reward in zip(seeds, rewards, strict=True)
        }
        self._answer(request, future, version, worker, length)

    def generate_turn(self, key, version, worker="w", length=2):
        """Answers a later turn."""
        request, future = self.later.pop(key)
        assert version >= request.min_version
        length = min(length, request.sampling.max_new_tokens)
        assert version >= request.min_version
        for (
            seed
        ) in request.seeds:  # where the environment begins, it may be an episode's first turn
            self._rewards.setdefault(seed, (key.group, float(key.sample)))
        self._answer(request, future, version, worker, length)

    def _answer(self, request, future, version, worker, length):
        generated_by = self.workers.setdefault(worker, Process())
        self.told.append(Told(request.key.group, worker, request.context))
        samples = tuple(
            Sampled(
                seed,
                tokens=np.array([*[5] * (length - 1), 1], np.int32),
                logprobs=np.full(length, -len(self.told), np.float32),
                versions=np.full(length, version, np.int32),
                finish="stop",
                workers=(worker,),
            )
            for seed in request.seeds
        )
        future.set_result(Completed(request, samples, (generated_by,)))

    def reward(self, group_id):
        future = self.unscored.pop(group_id)
        if not future.done():
            future.set_result(None)

    async def answer(self, group_id, version, rewards=(0.0, 1.0), length=2):
        self.generate(group_id, version, rewards, length=length)
        await settle()


async def settle():
    """Returns once nothing on the event loop can go on without the test, or a thread."""
    await turns()


class Harness:
    """One process's worth of a run in ``directory``; make another one there to resume it."""

    def __init__(
        self,
        directory: Path,
        j=1,
        k=1,
        *,
        groups=2,
        filters=(),
        refill=8,
        oversample=1.0,
        guard=None,
        deterministic=False,
        step=0,
        last_step=100,
        sampler=None,
        batches=None,
        screening=None,
        rewards=None,
        play=None,
        told=None,
        temperature=1.0,
        guidance=None,
        begins="prompt",
        environments=None,
    ):
        rlax = {
            "prompt_source": {"name": "x"},
            "rewards": [{"name": "x"}],
            "rollouts": {
                "group_size": 2,
                "groups_per_step": groups,
                "max_prompt_tokens": 1,
                "temperature": temperature,
            },
            "batches": batches or {},
            "staleness": {"reload_every": j, "max_staleness": k},
            "curation": {
                "max_refill": refill,
                "oversample": oversample,
                "guard": guard or {},
                "screening": screening or {},
            },
            "deterministic": deterministic,
            "objective": {"guidance": guidance},
        }
        if play is not None:
            rlax |= {"environment": {"name": "x"}, "episodes": {"max_turns": 4, "max_tokens": 20}}
        for name, own in (environments or {}).items():
            rlax.setdefault("environments", {})[name] = {"prompt_source": {"name": "x"}, **own}
        self.files = RunFiles(directory)
        self.files.put("config.yml", yaml.safe_dump({"rlax": rlax}).encode())
        self.latest = 0
        self.answers, self._begins = Answers(rewards, play, told), begins
        section = RlaxSection.model_validate(rlax)
        names, prompts = section.by_environment, Source().prompts("train")
        self.run_state = RunState(
            section,
            JoinedPrompts(dict.fromkeys(names, prompts)) if environments else prompts,
            {name: sampler or InOrder() for name in names},
            PassRateTable(10 * len(names), 32.0),
        )
        self.about = about_rates(section, sampling_params(section, Source()), "x", None)
        self.errors: list[BaseException] = []
        self.notes: list[str] = []  # for people
        self.ledger = Ledger(directory / "ledger.sqlite", run="x")
        # No timer: events reach the ledger with a commit, or when a test flushes them.
        self.recorder = Recorder(self.files, self.ledger, self.errors.append, flush_s=3600)
        self.supervision = Supervision()
        self.flow = self._flow(RlaxSection.model_validate(rlax), filters, last_step)
        self.checkpoints: dict[int, str] = {}  # of a trainer, for messages
        self._step = step

    def _flow(self, section, filters, last_step):
        history, source = RunHistory(self.run_state, self.recorder), Source()
        observers = Observers(Manager(()), (), self.supervision)
        rule = BatchRule.of(section)
        staleness = Staleness(section, rule.groups)
        buffer = Buffer(section, history, rule, staleness)
        turns, environment = Turns(history), rlax_environments.SingleTurn()
        environment.begins = self._begins
        self.newest = NewestVersion()
        self.issuing = Issuing(
            section,
            dict.fromkeys(section.by_environment, sampling_params(section, source)),
            history=history,
            turns=turns,
            environments=dict.fromkeys(section.by_environment, environment),
            buffer=buffer,
            last_step=last_step,
            newest=self.newest,
        )
        trips = Trips(
            section,
            SimpleNamespace(
                source=source,
                dispatcher=self.answers,
                rewards=self.answers,
                environments={
                    name: SimpleNamespace(
                        episodes=EpisodeRunner(one, source, environment, self.answers),
                        rewards=self.answers,
                    )
                    for name, one in section.by_environment.items()
                },
            ),
            filters=filters,
            guard=KeptGuard(section.curation.guard, self.notes.append),
            observers=observers,
            history=history,
            turns=turns,
            refresher=self.issuing,
        )
        return Flow(
            history=history,
            issuing=self.issuing,
            trips=trips,
            turns=turns,
            buffer=buffer,
            advantage_slots=dict.fromkeys(
                section.by_environment, per_group(lambda rewards, lengths: rewards - rewards.mean())
            ),
            observers=observers,
            supervision=self.supervision,
        )

    async def start(self) -> Recovery:
        self.publish(self._step)
        recovery = Recovery(
            self._step,
            run_state=self.run_state,
            files=self.files,
            ledger=self.ledger,
            recorder=self.recorder,
            checkpoints=lambda: self.checkpoints,
        )
        await self.flow.start(recovery)
        return recovery

    async def begin(self) -> None:
        await self.start()
        await settle()

    async def published(self, version) -> None:
        self.publish(version)
        await settle()

    def publish(self, version):
        self.latest = self.newest.number = version
        self.flow.published(version, f"{version:08x}")

    async def checkpoint(self, step):
        commit, saved = await self.flow.commit()
        document = snapshot(step, commit.number, commit.checksum, saved.document)
        write_snapshot(self.files, document, saved.rates, self.run_state.prompts, self.about)

    def quarantine(self, worker):
        """What the fleet does when a worker has found its weights to be wrong."""
        if known := self.answers.workers.pop(worker, None):
            known.trusted = False
        self.flow.distrust(worker)

    def lose_worker(self, group_id):
        """What the dispatcher does when the call that held this group breaks."""
        self.answers.begun.pop(group_id, None)
        self._lose(self.answers.open, group_id)

    def lose_worker_of_turn(self, key):
        self._lose(self.answers.later, key)

    def _lose(self, requests, key):
        request, future = requests[key]
        again = self.issuing.refreshed(dataclasses.replace(request, attempt=request.attempt + 1))
        requests[key] = (again, future)
        self.issuing.reissued(again, "the worker was lost", Ending.WORKER_LOST)
