"""The pool of reward processes: scores groups under a deadline, and survives what rewards do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.types import Prompt, Rollout

_LINE_LIMIT = 64 << 20
_START_S = 30.0


class _Process:
    """One reward process; answers one job at a time."""

    def __init__(self, hello: dict[str, Any], log: IO[bytes]):
        self._hello, self._log = hello, log
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
        await asyncio.wait_for(self._exchange(self._hello), _START_S)

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process and self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            raise RlaxError("the reward process ended")
        return json.loads(line)

    async def ask(self, job: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """The answer to a job; after any failure the process is replaced by a fresh one."""
        try:
            return await asyncio.wait_for(self._exchange(job), deadline_s)
        except (TimeoutError, RlaxError, ConnectionError):
            await self.stop()
            await self.start()
            raise

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
    counts as 0 and never stops the run. Only the sample that hung is lost: the others of its group
    are scored again one by one.
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
        self.errors = 0

    async def start(self) -> None:
        self._all = [
            _Process(self._hello, self._log) for _ in range(self._section.reward_processes)
        ]
        try:
            await asyncio.gather(*(p.start() for p in self._all))
        except (TimeoutError, RlaxError) as error:
            raise RlaxError(f"a reward process did not start; see {self._log.name}") from error
        for process in self._all:
            self._idle.put_nowait(process)

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with ``reward`` or ``reward_error`` set."""
        process = await self._idle.get()
        try:
            results = await self._ask(process, prompt, [r.text for r in rollouts])
        finally:
            self._idle.put_nowait(process)
        scored = []
        for rollout, result in zip(rollouts, results, strict=True):
            self.errors += "error" in result
            scored.append(
                dataclasses.replace(
                    rollout, reward=result.get("reward"), reward_error=result.get("error")
                )
            )
        return scored

    async def _ask(
        self, process: _Process, prompt: Prompt, texts: list[str]
    ) -> list[dict[str, Any]]:
        self._jobs += 1
        job = {
            "job": self._jobs,
            "prompt_id": prompt.id,
            "prompt_tokens": prompt.tokens.tolist(),
            "prompt_text": prompt.text,
            "reference": prompt.reference,
            "completions": texts,
        }
        try:
            return (await process.ask(job, self._deadline_s))["results"]
        except (TimeoutError, RlaxError, ConnectionError) as error:
            if len(texts) > 1:
                return [(await self._ask(process, prompt, [text]))[0] for text in texts]
            if isinstance(error, TimeoutError):
                error = DeadlineError("a reward call", self._deadline_s, "rlax.deadlines.reward_s")
            return [{"error": str(error)}]

    async def close(self) -> None:
        await asyncio.gather(*(p.stop() for p in self._all))
        self._log.close()
