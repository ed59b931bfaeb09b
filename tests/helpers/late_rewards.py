"""A reward that is late as soon as it hangs: no machine is too slow for its deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rlax_plugin.rewards.jobs import Job
from rlax_plugin.rewards.runner import Runner


def texts_of(job: Job) -> list[str]:
    """What a job shows rewards, or the answer that an environment goes on from."""
    message = job.message(with_prompt=False)
    if "play" in message:
        return [message["play"]["answer"]["text"]]
    return [episode["text"] for episode in message["episodes"]]


def late_at_once(patch: pytest.MonkeyPatch, hanging: Path) -> None:
    """A job's time is over once code in the process has made a file, with a text of the job in it.

    Args:
      hanging: the file; it is removed, so that the next one may hang as well.
    """
    begins = Runner._begins

    def watched(runner: Runner, job: Job) -> None:
        begins(runner, job)
        number = job.number

        def look() -> None:
            if job.number != number or job not in runner.jobs:
                return
            if hanging.exists() and hanging.read_text() in texts_of(job):
                hanging.unlink()
                job.clock._limit_s = 0.0
                runner._is_late(job, number)
            else:
                asyncio.get_running_loop().call_later(0.01, look)

        look()

    patch.setattr(Runner, "_begins", watched)
