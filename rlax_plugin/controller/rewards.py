"""The pool of reward processes: scores groups under a deadline, and survives what rewards do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO, Any

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.types import Prompt, Rollout

_LINE_LIMIT = 64 << 20


class _Process:
    """One reward process; answers one job at a time."""

    def __init__(self, hello: dict[str, Any], log: IO[bytes], startup_s: float):
        self._hello, self._log, self._startup_s = hello, log, startup_s
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rlax_plugin.controller.reward_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            limit=_LINE_LIMIT,
            start_new_session=True,  # a Ctrl-C is the controller's to handle
        )
        self._write(self._hello)
        try:
            await asyncio.wait_for(self._read(), self._startup_s)
        except TimeoutError:
            what, key = "starting a reward process", "rlax.deadlines.startup_s"
            raise DeadlineError(what, self._startup_s, key) from None

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process and self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> dict[str, Any]:
        assert self._process and self._process.stdout
        line = await self._process.stdout.readline()
        if not line:
            raise RlaxError("the reward process ended")
        return json.loads(line)

    async def ask(self, job: dict[str, Any], deadline_s: float) -> AsyncIterator[dict[str, Any]]:
        """One answer per completion of a job, each under the deadline.

        After a failure the process must be stopped; the next job starts a fresh one.
        """
        if self._process is None:
            await self.start()
        self._write(job)
        left = len(job["completions"])
        while left:
            answer = await asyncio.wait_for(self._read(), deadline_s)
            if answer["job"] == job["job"]:  # not left over from a job that was given up
                left -= 1
                yield answer

    async def stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.returncode is None:
            process.kill()
        await process.wait()


class RewardPool:
    """Scores completions in ``section.reward_processes`` processes.

    A reward that raises or outlives ``deadlines.reward_s`` marks its sample as errored; it never
    counts as 0 and never stops the run. Only the sample that hung is lost: a fresh process scores
    those that come after it.
    """

    def __init__(self, section: RlaxSection, run_dir: Path):
        self._section = section
        self._deadline_s = section.deadlines.reward_s
        log_path = run_dir / "logs" / "rewards.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = log_path.open("ab")
        self._hello = {"section": section.model_dump(mode="json"), "run_dir": str(run_dir)}
        self._idle: asyncio.Queue[_Process] = asyncio.Queue()
        self._all: list[_Process] = []
        self._jobs = 0

    async def start(self) -> None:
        self._all = [
            _Process(self._hello, self._log, self._section.deadlines.startup_s)
            for _ in range(self._section.reward_processes)
        ]
        # All of them to their end: ``close`` does not know of one that is only being started.
        started = await asyncio.gather(*(p.start() for p in self._all), return_exceptions=True)
        for error in started:
            if isinstance(error, RlaxError):
                raise RlaxError(f"a reward process did not start; see {self._log.name}") from error
            if error is not None:
                raise error
        for process in self._all:
            self._idle.put_nowait(process)

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with ``reward`` or ``reward_error`` set."""
        process = await self._idle.get()
        try:
            answers = await self._ask(process, prompt, [r.text for r in rollouts])
        finally:
            self._idle.put_nowait(process)
        return [
            dataclasses.replace(
                rollout,
                reward=answer.get("reward"),
                reward_parts=tuple(answer.get("parts", ())),
                reward_error=answer.get("error"),
            )
            for rollout, answer in zip(rollouts, answers, strict=True)
        ]

    async def _ask(
        self, process: _Process, prompt: Prompt, texts: list[str]
    ) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        while len(answers) < len(texts):
            self._jobs += 1
            job = {
                "job": self._jobs,
                "prompt_id": prompt.id,
                "prompt_tokens": prompt.tokens.tolist(),
                "prompt_text": prompt.text,
                "reference": prompt.reference,
                "completions": texts[len(answers) :],
            }
            try:
                async for answer in process.ask(job, self._deadline_s):
                    answers.append(answer)
            except (TimeoutError, RlaxError, ConnectionError) as error:
                await process.stop()
                if isinstance(error, TimeoutError):
                    key = "rlax.deadlines.reward_s"
                    error = DeadlineError("a reward call", self._deadline_s, key)
                answers.append({"error": str(error)})
        return answers

    async def close(self) -> None:
        await asyncio.gather(*(p.stop() for p in self._all), return_exceptions=True)
        self._log.close()
