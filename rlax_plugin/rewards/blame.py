"""Decides which job ended a reward process, and when ended processes should end the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.rewards.handle import NO_ANSWER
from rlax_plugin.rewards.process_jobs import Runner
from rlax_plugin.rewards.reward_jobs import Job

MOST_IN_VAIN = 8, 40  # see ``RewardPool``
_PROMPTS_IN_VAIN = 3  # that it must concern, as a single one may be at fault
_LATELY = 64  # calls whose failures are counted


class Blame:
    """Decides which jobs are to blame for ended processes.

    Args:
      processes: number of processes.
      names: names of the rewards, for messages.
      environment: name of the environment, for messages.
      log: the file with the output of rewards, for messages.
      note, most_in_vain: see ``RewardPool``.

    Attributes:
      replaced: see ``RewardPool``.
    """

    def __init__(
        self,
        processes: int,
        names: Sequence[str],
        environment: str,
        log: Path,
        note: Callable[[str], None],
        most_in_vain: tuple[int, int] = MOST_IN_VAIN,
    ):
        self._most_in_vain = most_in_vain
        self._processes, self._names, self._environment = processes, names, environment
        self._log, self._note = log, note
        self._slowest_s = 0.0  # of the answers so far
        self._succeeded = False
        self._in_vain: list[str] = []  # prompts whose jobs ended processes since the last result
        self._lately = deque[tuple[str, str]](maxlen=_LATELY)  # prompt, why it has no result or ""
        self.replaced = 0

    def done(self, job: Job) -> None:
        """Records that a job has ended normally."""
        if job.late is None and not job.abandoned:
            self._slowest_s = max(self._slowest_s, job.clock.used_s)
        if job.succeeded:
            self._succeeded = True
            self._in_vain.clear()
        if job.failure or job.succeeded:
            self._lately.append((job.prompt.id, job.failure))

    @property
    def failing(self) -> str:
        """The newest error, if most of the last jobs failed, of several prompts; else empty.

        A process that ends takes seconds to replace, so that it is minutes until most of the last
        jobs have ended one. If there was no result in between, the jobs before do not count.
        """
        failed = [(prompt, why) for prompt, why in self._lately if why]
        several = len({prompt for prompt, _ in failed}) >= _PROMPTS_IN_VAIN
        most = several and 2 * len(failed) > len(self._lately)
        in_vain = len(set(self._in_vain)) >= _PROMPTS_IN_VAIN
        return failed[-1][1] if most or in_vain else ""

    def late(self, job: Job, runner: Runner) -> DeadlineError:
        """Returns the error for a job that has exceeded its time limit."""
        slowest = f"{self._slowest_s:.2g} s" if self._slowest_s else "none"
        of = f" for the {job.samples} samples of a group" if job.samples > 1 else ""
        what = f"{self._name(job, runner)}{of} (slowest answer so far: {slowest})"
        return DeadlineError(what, job.limit_s, job.limit_key)

    def _name(self, job: Job, runner: Runner) -> str:
        """Returns the reward or environment that runs for a job, as the untrusted process says."""
        if job.plays:
            return self._environment
        number = job.reward if job.on_loop else runner.process.witness.reward
        return self._names[min(number, len(self._names) - 1)]

    def verdicts(
        self, runner: Runner, how: str | DeadlineError, ended: Sequence[Job]
    ) -> Mapping[Job, RlaxError]:
        """Returns the jobs that fail, with the reason, and marks others as suspects.

        A job is to blame if nothing else can have ended the process: if the process was started for
        this job, or if it happens again to the same job.

        Args:
          runner: the process.
          how, ended: see ``Owner.gone``.

        Raises:
          RlaxError: processes keep ending without any result.
        """
        verdicts: dict[Job, RlaxError] = {}
        said = self._said(runner, how, ended)
        if isinstance(how, DeadlineError):
            verdicts = dict.fromkeys(ended, how)
            if ended[0].abandoned:
                return verdicts
        else:
            for job in ended:
                if job.deaths or runner.begun == 1:
                    verdicts[job] = RlaxError(said)
                job.deaths += 1
                job.alone = job.alone or len(ended) > 1
        on = f", on prompt {ended[0].prompt.id}" if ended else ""
        self.replace(f"{said}{on}")
        if ended:
            self._count(ended[0].prompt.id, said)
        return verdicts

    def _said(self, runner: Runner, how: str | DeadlineError, ended: Sequence[Job]) -> str:
        if isinstance(how, DeadlineError):
            return str(how)
        if not ended:
            return f"an idle reward process {how}"
        names = dict.fromkeys(self._name(job, runner) for job in ended)
        if how == NO_ANSWER and not any(job.plays for job in ended):
            # It runs on, perhaps in another reward by now, so that the culprit is not known.
            names = dict.fromkeys(self._names)
        return f"the reward process of {', '.join(names)} {how}"

    def replace(self, why: str) -> None:
        """Counts a process that has to be replaced, and notes the reason."""
        self.replaced += 1
        if self.replaced & (self.replaced - 1) == 0:  # 1, 2, 4, 8, ...: at once, and not too often
            self._note(
                f"{why}; another one is started ({self.replaced} so far; {self._log} holds "
                "what they printed)"
            )

    def _count(self, prompt_id: str, said: str) -> None:
        self._in_vain.append(prompt_id)
        self._lately.append((prompt_id, said))
        most = self._most_in_vain[self._succeeded]
        most *= self._processes  # processes that wait for one judge expire together
        if len(self._in_vain) >= most and len(set(self._in_vain)) >= _PROMPTS_IN_VAIN:
            raise RlaxError(
                f"{said}; reward processes ended {len(self._in_vain)} times in a row "
                "and no sample got a reward: fix that reward (its output is in "
                f"{self._log})"
            )
