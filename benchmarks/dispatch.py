"""Counts the share of decode slots in use with long-tailed samples, in decode steps, not seconds.

The real dispatcher and the real scheduler of each worker, in virtual time: every slot generates one
token per decode step; prefill and training take none. So what is missing to 1 is due to dispatch,
to the last samples of a step, and to the change of weights. Lengths are log-normal, and 1 % of them
reach the limit, which is 10 times the median. Half of the variance of their logarithms is the
prompt's, and so can be known from its earlier groups.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))

from dispatching import STOP, make
from virtual_workers import VirtualFleet, VirtualSlots

from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.expected_lengths import ExpectedLengths
from rlax_plugin.controller.staleness import Staleness
from rlax_plugin.fleet.tickets import Completed
from rlax_plugin.types import Key, Request, SamplingParams

MEDIAN, LONGEST = 100, 1000  # tokens
SIGMA = float(np.log(LONGEST / MEDIAN) / 2.3263)  # the normal distribution's 99 % quantile
HEARTBEAT = 10  # decode steps between heartbeats; 2 s, if one takes 0.2 s
WORKERS, SLOTS = 4, 16
EPOCH = 4  # steps in which every prompt comes up once
WARM_UP = 6  # steps that are not counted: all prompts have been seen


@dataclass(frozen=True)
class Case:
    """One workload.

    Attributes:
      parts: requests that a group is split into; the dispatcher spreads them over the workers.
      of_prompt: share of the variance of log-lengths that the prompt explains.
    """

    groups: int
    group_size: int
    staleness: int
    mode: str = "continue"
    order: str = "longest_first"
    parts: int = 1
    of_prompt: float = 0.5
    steps: int = 12


@dataclass(frozen=True)
class Found:
    """The figures of a case.

    Attributes:
      used: share of all slot-steps in which a slot generated a token.
      bound: the most that it can be if each step's samples wait for the step before; 1 if not.
      prefills: per group.
    """

    used: float
    bound: float
    prefills: float


class Lengths:
    """The lengths of all samples, from one seed: the same in whatever order they are generated."""

    def __init__(self, case: Case, seed: int):
        rng = np.random.default_rng(seed)
        self._case, prompts = case, EPOCH * case.groups
        of_prompts = rng.normal(0, SIGMA * np.sqrt(case.of_prompt), prompts)
        epochs = -(-case.steps // EPOCH)
        self.prompts = np.concatenate([rng.permutation(prompts) for _ in range(epochs)])
        own = rng.normal(
            0, SIGMA * np.sqrt(1 - case.of_prompt), (epochs * prompts, case.group_size)
        )
        logs = of_prompts[self.prompts][:, None] + own
        self.table = np.clip(np.rint(MEDIAN * np.exp(logs)), 1, LONGEST).astype(int)

    def of_seed(self, seed: int) -> int:
        return int(self.table[divmod(seed, self._case.group_size)])

    def bound(self) -> float:
        """The share in use if the whole step's lengths were known and samples could move freely."""
        if self._case.staleness > 1:
            return 1.0
        case, slots = self._case, WORKERS * SLOTS
        steps = self.table[: case.steps * case.groups].reshape(case.steps, -1)[WARM_UP:]
        took = np.maximum(steps.sum(1) / slots, steps.max(1))
        return float(steps.sum() / (slots * took.sum()))


class Training:
    """A trainer that takes the oldest groups, and publishes a version per step."""

    def __init__(self, case: Case, fleet: VirtualFleet, lengths: Lengths):
        section = RlaxSection.model_validate(
            {
                "rollouts": {
                    "group_size": case.group_size,
                    "groups_per_step": case.groups,
                    "order": case.order,
                },
                "staleness": {"max_staleness": case.staleness},
                "prompt_source": {"name": "arithmetic"},
                "rewards": [{"name": "arithmetic"}],
            }
        )
        self._case, self._fleet, self._lengths = case, fleet, lengths
        self._staleness = Staleness(section, case.groups)
        self._expected = ExpectedLengths(section, EPOCH * case.groups)
        self._issued, self._step, self._answered = 0, 1, set[int]()
        self.ended_at = [0]  # ticks, of each step
        self.busy_at = [0]

    @property
    def ended(self) -> bool:
        return len(self.ended_at) > self._case.steps

    def issue(self) -> None:
        case = self._case
        while (ahead := self._issued - (self._step - 1) * case.groups) < self._staleness.capacity:
            if self._issued == case.steps * case.groups:
                return
            version = self._staleness.wanted_version(self._step, ahead)
            if version > self._fleet.fleet.newest.number:
                return
            self._submit(self._issued, version)
            self._issued += 1

    def _submit(self, group: int, version: int) -> None:
        size, parts = self._case.group_size, self._case.parts
        first, prompt = group * size, int(self._lengths.prompts[group])
        sampling = SamplingParams(max_new_tokens=LONGEST, stop_ids=(STOP,))
        answers = []
        for part in range(parts):
            seeds = tuple(range(first + part * size // parts, first + (part + 1) * size // parts))
            key = Key("train", group * parts + part)
            request = Request(key, 1, np.ones(1, np.int32), seeds, sampling, version)
            answers.append(self._fleet.dispatcher.submit(request, self._expected.expected(prompt)))

        def scored(done: asyncio.Future[list[Completed]]) -> None:
            self._scored(group, [len(s.tokens) for one in done.result() for s in one.samples])

        asyncio.gather(*answers).add_done_callback(scored)

    def _scored(self, group: int, lengths: Sequence[int]) -> None:
        self._answered.add(group)
        self._expected.observe(int(self._lengths.prompts[group]), lengths)
        case = self._case
        while (
            set(range((self._step - 1) * case.groups, self._step * case.groups)) <= self._answered
        ):
            self._fleet.publish(self._step)
            self._step += 1
            self.ended_at.append(self._fleet.now)
            self.busy_at.append(sum(w.slots.slot_steps_total for w in self._fleet.workers.values()))
            if self.ended:
                return
        self.issue()


async def simulate(case: Case, seed: int) -> Found:
    """Returns the figures of one run of a case."""
    members, dispatcher, _ = make(refresh=lambda request: request)
    members.newest.number = 0
    fleet, lengths = VirtualFleet(members, dispatcher, HEARTBEAT), Lengths(case, seed)
    for number in range(WORKERS):
        await fleet.join(f"w{number}", VirtualSlots(SLOTS, lengths.of_seed), case.mode)
    training = Training(case, fleet, lengths)
    training.issue()
    await fleet.run(lambda: training.ended)
    await dispatcher.close()
    await members.close()
    # The last steps have no work behind them.
    first, last = WARM_UP, case.steps - case.staleness + 1
    busy = training.busy_at[last] - training.busy_at[first]
    ticks = training.ended_at[last] - training.ended_at[first]
    prefills = sum(worker.slots.prefills for worker in fleet.workers.values())
    return Found(
        used=busy / (ticks * WORKERS * SLOTS),
        bound=lengths.bound(),
        prefills=prefills / (case.steps * case.groups),
    )


def cases() -> Iterator[Case]:
    for staleness in (1, 2):
        for groups, size in ((32, 16), (64, 16), (128, 8), (16, 32)):
            for order in ("issued", "longest_first"):
                yield Case(groups, size, staleness, order=order)
    yield Case(32, 16, 4)
    for groups, size in ((32, 16), (16, 32)):
        yield Case(groups, size, 1, parts=4)
    for staleness in (2, 4):
        yield Case(64, 16, staleness, "finish")


def measured(case: Case, seeds: int) -> Found:
    found = [asyncio.run(simulate(case, seed)) for seed in range(seeds)]
    return Found(*(float(np.mean([getattr(f, n) for f in found])) for n in Found.__annotations__))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    table = Table(title=f"share of slot-steps in use, {WORKERS} workers of {SLOTS} slots")
    columns = (
        "groups x samples",
        "max_staleness",
        "new weights",
        "order",
        "parts",
        "used",
        "bound",
    )
    for column in (*columns, "prefills"):
        table.add_column(column, justify="right")
    rows = []
    for case in cases():
        found = measured(case, args.seeds)
        rows.append(asdict(case) | asdict(found))
        figures = (f"{found.used:.3f}", f"{found.bound:.3f}", f"{found.prefills:.1f}")
        table.add_row(
            f"{case.groups} x {case.group_size}",
            str(case.staleness),
            case.mode,
            case.order,
            str(case.parts),
            *figures,
        )
    Console(width=100).print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
