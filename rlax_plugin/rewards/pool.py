"""The pool of reward processes: scores groups under a deadline, and survives what rewards do."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.rewards.handle import NO_ANSWER, EndedError, RewardProcess
from rlax_plugin.rewards.output import RewardOutput
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import Episode, Prompt, Score, Unscored

log = logging.getLogger("rlax.controller")

_LONGEST_ERROR = 1200  # characters; the process has cut it already

_CLOSED = "the pool of reward processes is closed"
_STARTS = 3
"""Attempts to start a process before the run ends. No sample is to blame if one does not start."""

_MOST_IN_VAIN, _MOST_IN_VAIN_AT_FIRST, _PROMPTS_IN_VAIN = 40, 8, 3
"""The run ends after so many processes in a row that ended, or were killed, without a reward
between them: once there has been a reward; before that; and how many prompts it must concern, as a
single one may be at fault."""


def _parsed(line: bytes, job: int, sample: int, rewards: int) -> Score | Unscored:
    """The answer for a sample of a job, from a process in which anything may run.

    Raises:
      ValueError: it is none.
    """
    try:
        answer = json.loads(line)
        if (answer["job"], answer["sample"]) != (job, sample):
            raise ValueError("the answer of another sample")
        if "error" in answer:
            return Unscored(one_line(answer["error"], _LONGEST_ERROR))
        reward, parts = float(answer["reward"]), tuple(map(float, answer["parts"]))
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError("no answer") from error
    if not math.isfinite(reward) or len(parts) != rewards:
        raise ValueError("no answer")
    return Score(reward, parts)


class RewardPool:
    """Scores completions in ``section.reward_processes`` processes.

    A reward that raises or outlives ``deadlines.reward_s`` marks its sample as errored; it never
    counts as 0 and never stops the run. Only the sample that hung is lost: a fresh process scores
    those that come after it. A sample whose process ends is errored if nothing else can have ended
    it: if the process was started for its group, or if it happens again.

    Args:
      run_dir: where ``logs/rewards.log`` gets what rewards print.
      key: dotted key of the list of rewards, for messages.
      note: told at once, in one line, that a process had to be replaced.

    Attributes:
      replaced: how often a process ended, or was killed for being late.
    """

    def __init__(
        self,
        section: RlaxSection,
        run_dir: Path,
        *,
        key: str = "rlax.rewards",
        note: Callable[[str], None] = log.warning,
    ):
        self._section, self._note = section, note
        self._names = [f"{key}.{i} ({choice.name})" for i, choice in enumerate(section.rewards)]
        self._deadline_s = section.deadlines.reward_s
        self._output = RewardOutput(run_dir / "logs" / "rewards.log")
        self._hello = {
            "section": section.model_dump(mode="json"),
            "run_dir": str(run_dir),
            "key": key,
        }
        self._idle: asyncio.Queue[RewardProcess] = asyncio.Queue()
        self._all: list[RewardProcess] = []
        self._closed = False
        self._jobs = 0
        self._slowest_s = 0.0  # of the answers so far
        self._scored = False
        self._in_vain: list[str] = []  # prompts whose samples ended processes since the last reward
        self.replaced = 0

    async def start(self) -> None:
        """Starts all processes.

        Raises:
          RlaxError: one does not start; the reason is in the log.
        """
        self._all = [
            RewardProcess(self._hello, self._output, self._section.deadlines.startup_s)
            for _ in range(self._section.reward_processes)
        ]
        # All of them to their end: ``close`` does not know of one that is only being started.
        started = await asyncio.gather(*(p.start() for p in self._all), return_exceptions=True)
        for error in started:
            if isinstance(error, RlaxError):
                raise self._not_started(error) from error
            if error is not None:
                raise error
        for process in self._all:
            self._idle.put_nowait(process)

    def _not_started(self, error: RlaxError) -> RlaxError:
        return RlaxError(f"a reward process did not start; see {self._output.path} ({error})")

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> list[Score | Unscored]:
        """What rewards give each episode.

        Raises:
          RlaxError: a reward process cannot be started again, or rewards do nothing but end it.
        """
        scores: list[Score | Unscored] = []
        suspect = -1  # the sample that was being scored when a process ended
        while len(scores) < len(episodes):
            # Waiting anew each time: a group that ends every process does not hold up the others.
            process = await self._idle.get()
            try:
                started = not process.alive
                if process.died:
                    self._replaced(f"an idle reward process {await process.how_it_ended()}")
                if started:
                    await self._start(process)
                texts = [episode.text for episode in episodes[len(scores) :]]
                error = await self._ask(process, prompt, texts, scores)
            except BaseException:
                process.end()  # it may be at this job still, which must not cost the next one
                raise
            finally:
                self._idle.put_nowait(process)
            if error is None:
                continue
            if isinstance(error, DeadlineError) or started or suspect == len(scores):
                scores.append(Unscored(str(error)))
            else:
                suspect = len(scores)
            await asyncio.sleep(0)  # or this very group would take the process again
        return scores

    async def _start(self, process: RewardProcess) -> None:
        for attempt in range(1, _STARTS + 1):
            try:
                if not self._closed:
                    await process.start()
                if self._closed:  # perhaps while it was started
                    raise RlaxError(_CLOSED)
                return
            except RlaxError as error:
                if attempt == _STARTS or self._closed:
                    raise self._not_started(error) from error
                self._note(f"{error}; it is started again")

    async def _ask(
        self,
        process: RewardProcess,
        prompt: Prompt,
        texts: list[str],
        scores: list[Score | Unscored],
    ) -> RlaxError | None:
        """Adds a score for each text, or returns why the process that scored the next is gone."""
        job = self._jobs = self._jobs + 1
        process.ask(
            {
                "job": job,
                "prompt_id": prompt.id,
                "prompt_tokens": prompt.tokens.tolist(),
                "prompt_text": prompt.text,
                "reference": prompt.reference,
                "completions": texts,
            }
        )
        for sample in range(len(texts)):
            began_s = time.monotonic()
            try:
                line = await process.line(self._deadline_s)
                scores.append(_parsed(line, job, sample, len(self._names)))
            except TimeoutError:
                return self._gone(process, prompt, self._late(process))
            except ValueError:
                # It runs on, perhaps in another reward by now, so that the culprit is not known.
                name, how = ", ".join(self._names), NO_ANSWER
            except EndedError as error:
                name, how = self._name(process), str(error)
            else:
                self._slowest_s = max(self._slowest_s, time.monotonic() - began_s)
                if isinstance(scores[-1], Score):
                    self._scored = True
                    self._in_vain.clear()
                continue
            return self._gone(process, prompt, RlaxError(f"the reward process of {name} {how}"))
        return None

    def _name(self, process: RewardProcess) -> str:
        """The reward that a process calls; there is no other witness, and so it is not trusted."""
        return self._names[min(process.current, len(self._names) - 1)]

    def _late(self, process: RewardProcess) -> DeadlineError:
        slowest = f"{self._slowest_s:.2g} s" if self._slowest_s else "none"
        what = f"{self._name(process)} (slowest answer so far: {slowest})"
        return DeadlineError(what, self._deadline_s, "rlax.deadlines.reward_s")

    def _gone(self, process: RewardProcess, prompt: Prompt, error: RlaxError) -> RlaxError:
        """Ends a process, counts it, and says so.

        Raises:
          RlaxError: that is all that rewards do, or the pool ended it itself.
        """
        if self._closed:
            raise RlaxError(_CLOSED)
        process.end()
        self._replaced(f"{error}, on prompt {prompt.id}")
        self._in_vain.append(prompt.id)
        most = _MOST_IN_VAIN if self._scored else _MOST_IN_VAIN_AT_FIRST
        most *= len(self._all)  # processes that wait for one judge expire together
        if len(self._in_vain) >= most and len(set(self._in_vain)) >= _PROMPTS_IN_VAIN:
            raise RlaxError(
                f"{error}; reward processes ended {len(self._in_vain)} times in a row "
                "and no sample got a reward: fix that reward (its output is in "
                f"{self._output.path})"
            )
        return error

    def _replaced(self, why: str) -> None:
        self.replaced += 1
        if self.replaced & (self.replaced - 1) == 0:  # 1, 2, 4, 8, ...: at once, and not too often
            self._note(
                f"{why}; another one is started ({self.replaced} so far; {self._output.path} holds "
                "what they printed)"
            )

    async def close(self) -> None:
        """Ends all processes, with what they have started."""
        self._closed = True
        for process in self._all:
            process.end()
        await asyncio.gather(*(process.ended() for process in self._all))
        await asyncio.to_thread(self._output.close)
