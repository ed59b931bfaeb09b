"""Compares the tokens that workers generate through gRPC with those of a bare jitted loop.

Both are given as many sequences at once as there are slots. The bare loop (``bare_loop.py``) starts
its next ones when all have ended; the worker is real, and is asked as ``rlax eval`` asks it:
requests, slots that are filled again, rewards, counts. They take turns on the same cores::

    python benchmarks/decode_rate.py --work w2 --slots 16 --rounds 10
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import bare_loop
import numpy as np
from bench import interval, machine
from rich.console import Console

from rlax_plugin.commands.evaluate.measured_policy import Origin, Policy, working_directory
from rlax_plugin.config import RlaxSection
from rlax_plugin.evaluation.problems import Answered
from rlax_plugin.prompts.checking import training_prompts
from rlax_plugin.prompts.of_run import Part, RunPrompts

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "decode_rate.jsonl"


class Bare:
    """The bare loop with as many sequences as there are slots."""

    def __init__(self, work: str, slots: int):
        import jax

        self._work = bare_loop.WORKS[work]
        self._key = jax.random.key(0)
        self._params = jax.jit(bare_loop.init, static_argnums=0)(self._work, self._key)
        shape = (slots // bare_loop.SAMPLES, self._work.prompt_tokens)
        self._prompts = np.random.default_rng(0).integers(0, self._work.vocab, shape, np.int32)

    def tokens_per_s(self, at_least_s: float) -> float:
        tokens, began_s = 0, time.perf_counter()
        while (took_s := time.perf_counter() - began_s) < at_least_s:
            found, _ = bare_loop.generate(self._work, self._params, self._prompts, self._key)
            tokens += np.asarray(found).size
        return tokens / took_s


def measure(work: str, slots: int, rounds: int, seconds: float) -> list[dict[str, float]]:
    """Returns the tokens per second of both, by turn."""
    overrides = [
        "rlax.evaluation.problems=0",
        f"rlax.rollouts.slots={slots}",
        "rlax.prompt_source.count=100000",
    ]
    origin = Origin.of_config(str(HERE.parent / "configs" / f"bench_{work}.yml"), overrides)
    prompts: list[Any] = []

    def read(section: RlaxSection, part: Part) -> RunPrompts:
        source = part("prompt_source", section.prompt_source, "rlax.prompt_source")
        prompts[:] = training_prompts(section, source, "train")
        return RunPrompts(source, prompts, ())

    turns: list[dict[str, float]] = []
    with working_directory("measure") as (directory, console, signals):
        policy = Policy(origin, directory, console.print, read)
        with policy.served(console, signals, show=False) as (thread, session, waiting):
            problems = session.training_set(policy.section, "train", prompts, bare_loop.SAMPLES)
            thread.run(session.worker_ready(waiting))
            asked, group = 0, bare_loop.SAMPLES * bare_loop.WORKS[work].new_tokens

            def served(groups: int) -> float:
                """Asks for groups; returns tokens per second."""
                nonlocal asked

                async def hand(index: int, answered: Answered) -> None:
                    pass

                began_s = time.perf_counter()
                thread.run(session.ask(problems, range(asked, asked + groups), hand))
                asked += groups
                return groups * group / (time.perf_counter() - began_s)

            bare = Bare(work, slots)
            bare.tokens_per_s(1.0)  # compiles
            served(2 * slots)
            groups = max(slots, int(seconds * served(2 * slots) / group))
            for turn in range(rounds):
                turns.append({"bare": bare.tokens_per_s(seconds), "served": served(groups)})
                console.print(f"turn {turn + 1}: {turns[-1]}")
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", choices=("w1", "w2"), default="w2")
    parser.add_argument("--slots", type=int, default=64, help="a multiple of 8")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn of each")
    given = parser.parse_args()
    turns = measure(given.work, given.slots, given.rounds, given.seconds)
    ratios = [one["served"] / one["bare"] for one in turns]
    line = {
        "machine": machine(),
        "work": given.work,
        "slots": given.slots,
        "bare_tokens_per_s": statistics.median(one["bare"] for one in turns),
        "served_tokens_per_s": statistics.median(one["served"] for one in turns),
        "ratio": statistics.median(ratios),
        "interval": interval(ratios),
        "rounds": given.rounds,
    }
    low, high = line["interval"]
    Console().print(
        f"{given.work}, {given.slots} slots: bare {line['bare_tokens_per_s']:,.0f} tokens/s, "
        f"through gRPC {line['served_tokens_per_s']:,.0f}: {line['ratio']:.2f} "
        f"({low:.2f} to {high:.2f})"
    )
    with RESULTS.open("a") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
