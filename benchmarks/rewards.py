"""Measures the reward processes: calls per second, concurrent calls, microseconds per sample.

    .venv/bin/python benchmarks/rewards.py

A reward that sleeps scores groups in several processes, as a function and async in a single
process; a trivial one scores group after group in one process, which shows the cost of a sample
apart from its reward.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.rewards.pool import RewardPool
from rlax_plugin.types import Episode, Prompt

PLUGIN = """
import asyncio, time
from rlax_plugin.api import Extension, NoOptions, hookimpl

def slow(prompt, completion):
    time.sleep(0.05)
    return 1.0

async def judge(prompt, completion):
    await asyncio.sleep(0.05)
    return 1.0

def trivial(prompt, completion):
    return float(len(completion))

@hookimpl
def rlax_register_reward():
    parts = {"slow": slow, "judge": judge, "trivial": trivial}
    return {
        name: Extension(NoOptions, lambda config, context, part=part: part)
        for name, part in parts.items()
    }
"""
PROMPT = Prompt("p", np.arange(64, dtype=np.int32), "1+2=", "3")


async def seconds(
    reward: str, processes: int, *, groups: int, size: int, at_once: int, rounds: int
) -> float:
    """Returns the best time of several rounds for scoring all groups, ``at_once`` at a time."""
    section = RlaxSection.model_validate(
        {
            "plugins": ["timed_rewards"],
            "prompt_source": {"name": "x"},
            "rewards": [{"name": reward}],
            "reward_processes": processes,
        }
    )
    pool = RewardPool(section, Path(tempfile.mkdtemp()))
    episodes = [Episode(i, (), f"answer {i}") for i in range(size)]
    limit = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with limit:
            await pool.score(PROMPT, episodes)

    try:
        await pool.start()
        await asyncio.gather(*(one() for _ in range(processes)))
        took = []
        for _ in range(rounds):
            began_s = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(groups)))
            took.append(time.perf_counter() - began_s)
        return min(took)
    finally:
        await pool.close()


async def measure(arguments: argparse.Namespace) -> None:
    groups, size = arguments.groups, arguments.size
    calls = groups * size
    for reward, processes in (("slow", arguments.processes), ("judge", 1)):
        took_s = await seconds(
            reward, processes, groups=groups, size=size, at_once=groups, rounds=5
        )
        print(
            f"{reward}, 50 ms, {groups} groups of {size}, {processes} processes: "
            f"{calls / took_s:.0f} calls/s, {calls * 0.05 / took_s:.1f} calls at a time"
        )
    for at_once in (1, 8):
        count = 100
        took_s = await seconds("trivial", 1, groups=count, size=size, at_once=at_once, rounds=7)
        print(
            f"trivial, groups of {size}, {at_once} at a time, 1 process: "
            f"{took_s / count / size * 1e6:.0f} us per sample"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=8, help="samples of a group")
    parser.add_argument("--processes", type=int, default=16)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "timed_rewards.py").write_text(PLUGIN)
        sys.path.insert(0, folder)
        import os

        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
