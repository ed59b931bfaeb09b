"""The controller's work for a group does not grow with the number of groups of a step."""

import asyncio
import statistics
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from counted_work import counted
from flow_harness import Harness
from waiting import LIMIT_S

SMALL, LARGE = 24, 96  # groups of a step


class Cost(NamedTuple):
    """The cost of one group: calls and jumps of the loop's thread, and bytes that were held."""

    calls: float
    jumps: float
    bytes: float


async def step(run: Harness, number: int, groups: int) -> None:
    """Trains one step, whose groups are scored in another order than they were issued in."""
    batch = asyncio.ensure_future(run.flow.batch(number))
    await asyncio.sleep(0)
    for group in sorted(run.answers.open, key=lambda group: group * 7 % groups):
        run.answers.generate(group, run.latest)
        for _ in range(8):
            await asyncio.sleep(0)
    assert len((await asyncio.wait_for(batch, LIMIT_S))[0].groups) == groups
    await run.published(number)


async def cost(directory: Path, groups: int, settings: dict[str, Any]) -> Cost:
    """The cost of a group in the second step of a run."""
    run = Harness(directory, groups=groups, **settings)
    await run.begin()
    await step(run, 1, groups)
    tracemalloc.start()
    with counted() as work:
        await step(run, 2, groups)
    _, held = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    run.flow.end()
    run.recorder.close()
    return Cost(work.calls / groups, work.jumps / groups, held / groups)


def usual_cost(directory: Path, groups: int, layout: Callable[[int], dict[str, Any]]) -> Cost:
    """The median of three runs: caches that fill and other threads' memory change one of them."""
    runs = [asyncio.run(cost(directory / str(turn), groups, layout(groups))) for turn in range(3)]
    return Cost(*map(statistics.median, zip(*runs, strict=True)))


LAYOUTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "rows": lambda groups: {},
    "ahead": lambda groups: {"oversample": 2.0, "k": 2},
    "packed": lambda groups: {"batches": {"rows": groups, "sequences_per_row": 4}},
    "tokens": lambda groups: {"batches": {"rows": 2 * groups, "tokens": 4 * groups}},
}


@pytest.mark.parametrize(
    "layout",
    [pytest.param(name, marks=() if name == "packed" else pytest.mark.long) for name in LAYOUTS],
)
def test_a_group_costs_the_same_among_many(layout: str, tmp_path: Path) -> None:
    small, large = (
        usual_cost(tmp_path / str(groups), groups, LAYOUTS[layout]) for groups in (SMALL, LARGE)
    )
    for name, of_few, of_many in zip(Cost._fields, small, large, strict=True):
        assert of_many <= 1.15 * of_few, f"{name} of a group: {of_few:g}, among many {of_many:g}"
