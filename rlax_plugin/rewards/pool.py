"""The pool of reward processes, which scores samples and plays episodes and survives crashes."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlax_plugin.config import RlaxSection, Schedule, last_of, value_at
from rlax_plugin.ports.environment import Outcome, PlayedEpisode
from rlax_plugin.rewards.blame import MOST_IN_VAIN, Blame
from rlax_plugin.rewards.distribution import Distributor
from rlax_plugin.rewards.forms import Needs
from rlax_plugin.rewards.handle import RewardProcess
from rlax_plugin.rewards.messages import prompt_to
from rlax_plugin.rewards.output import RewardOutput
from rlax_plugin.rewards.play_jobs import PlayCounts, PlayJob
from rlax_plugin.rewards.process_jobs import Runner
from rlax_plugin.rewards.reward_jobs import Clocks, Job, RewardCall, ScoreJob, Scores, clock_of
from rlax_plugin.types import Episode, Prompt, Score, Unscored

log = logging.getLogger("rlax.controller")


class RewardPool:
    """Scores completions and plays episodes in ``section.reward_processes`` processes.

    A sample is one job, unless a reward sees the group: then the group is one job. In each process,
    functions run one at a time, async rewards ``section.reward_concurrency`` at a time, and
    episodes of an environment without limit.

    A reward that raises or exceeds ``deadlines.reward_s`` marks its sample as errored; it never
    counts as 0 and never stops the run. Only the sample that hung is lost: the others of its
    process are scored in another process. If a process ends, its samples are scored once more. A
    sample is errored if the ended process was started for it, or if this happens to it again. If
    several samples may have ended a process, each is tried again in a process of its own.

    Args:
      section: the config.
      run_dir: its ``logs/rewards.log`` gets the output of rewards.
      key: dotted key of the list of rewards, for messages.
      note: called at once, with one line, when a process had to be replaced.
      clocks: make the clocks that measure the time of jobs.
      most_in_vain: two numbers, each per process: so many ends in a row without a result
        in between end the run. The first number holds before the first result of the run,
        the second one after it.
      functions: files of functions, see ``BuildContext``.

    Attributes:
      played: counts of the ways in which episodes have ended.
    """

    def __init__(
        self,
        section: RlaxSection,
        run_dir: Path,
        *,
        key: str = "rlax.rewards",
        note: Callable[[str], None] = log.warning,
        clocks: Clocks = clock_of,
        most_in_vain: tuple[int, int] = MOST_IN_VAIN,
        functions: Mapping[str, str] | None = None,
    ):
        self._section = section
        self._output = RewardOutput(run_dir / "logs" / "rewards.log")
        self.played = PlayCounts()
        hello: dict[str, Any] = {
            "section": section.model_dump(mode="json"),
            "run_dir": str(run_dir),
            "key": key,
            "functions": dict(functions or {}),
        }
        startup_s, path = section.deadlines.startup_s, self._output.path
        distributor = self._distributor = Distributor(section.reward_concurrency, path, note)
        distributor.runners = [
            Runner(RewardProcess(hello, self._output, startup_s), distributor, clocks)
            for _ in range(section.reward_processes)
        ]
        names = [f"{key}.{i} ({choice.name})" for i, choice in enumerate(section.rewards)]
        environment = f"rlax.environment ({section.environment.name})"
        processes = section.reward_processes
        distributor.blame = Blame(processes, names, environment, path, note, most_in_vain)

    @property
    def replaced(self) -> int:
        """The number of replaced processes: they ended, or were killed after a deadline."""
        return self._distributor.blame.replaced

    @property
    def failing(self) -> str:
        """The newest error of a reward or an environment, if most calls fail; else empty."""
        return self._distributor.blame.failing

    @property
    def under_way(self) -> int:
        """The number of jobs that processes have now."""
        return sum(runner.load for runner in self._distributor.runners)

    def slowest(self, most: int) -> list[tuple[Job, int]]:
        """Returns the jobs that have taken longest, each with the pid of its process."""
        running = [
            (job, runner.process.pid)
            for runner in self._distributor.runners
            for job in runner.jobs
            if job.clock.runs
        ]
        return heapq.nlargest(most, running, key=lambda one: one[0].clock.used_s)

    @property
    def busy(self) -> int:
        """The number of processes that compute something, rather than wait for the policy."""
        return sum(any(job.clock.runs for job in one.jobs) for one in self._distributor.runners)

    @property
    def pids(self) -> list[int]:
        """The pids of its processes; any thread may ask."""
        return [pid for one in self._distributor.runners if (pid := one.process.pid)]

    @property
    def needs(self) -> Needs:
        """The requirements of the rewards, once the pool is started."""
        return self._distributor.runners[0].process.needs

    async def start(self) -> None:
        """Starts all processes.

        Raises:
          RlaxError: a process does not start; the reason is in the log.
        """
        await self._distributor.start()

    async def score(
        self, prompt: Prompt, episodes: Sequence[Episode], *, step: int | None = None
    ) -> list[Score | Unscored]:
        """Returns a score for each episode.

        Args:
          prompt: the prompt of the episodes.
          episodes: one job each, unless a reward sees the group.
          step: the RL step whose weights count; None: the last values of their schedules.

        Raises:
          PluginError: the prompt's metadata are not JSON.
          RlaxError: a reward process cannot be started again, or rewards keep ending it.
        """
        if not self._section.rewards:  # the environment alone pays
            return [Score(0.0) for _ in episodes]
        if not episodes:
            return []
        needs, scores, shown = self.needs, Scores(len(episodes)), prompt_to(prompt)
        weights = [choice.weight for choice in self._section.rewards]
        size = len(episodes) if needs.group else 1
        call = RewardCall(
            reward_s=self._section.deadlines.reward_s,
            weights=[last_of(one) if step is None else value_at(one, step) for one in weights],
            limit=self._section.reward_limit,
            tokens=needs.tokens,
            on_loop=needs.waits,
            scheduled=any(isinstance(one, Schedule) for one in weights),
        )
        jobs = [
            ScoreJob(prompt, shown, episodes[first : first + size], scores, first, call)
            for first in range(0, len(episodes), size)
        ]
        return await self._result(jobs, scores.all)

    async def play(self, prompt: Prompt, played: PlayedEpisode) -> Outcome | Unscored:
        """Plays an episode, whose turns ``played`` samples, and returns its outcome.

        If its process ends, and this episode is not known to have caused it, it is played once more
        from its beginning.

        Raises:
          RlaxError: see ``score``; also an error of ``played``.
        """
        job = PlayJob(
            prompt,
            played,
            self._section.deadlines.episode_s,
            self.played,
            self._section.reward_limit,
        )
        return await self._result([job], job.result)

    async def _result(self, jobs: Sequence[Job], result: Any) -> Any:
        self._distributor.add(jobs)
        try:
            return await result
        except BaseException:
            self._distributor.abandon(jobs)
            raise

    async def close(self) -> None:
        """Ends all processes, with everything they have started."""
        await self._distributor.close()
        await asyncio.to_thread(self._output.close)
