"""The event loop is free while the figures of a large step are computed."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flow_harness import Harness, MixedOnly, settle
from sections import section_with

from rlax_plugin.run.controller import flow, issuing
from rlax_plugin.run.controller.step_figures import StepFigures
from rlax_plugin.run.metrics.step import FinishedStep, StepStats
from rlax_plugin.testing.builders import make_batch, make_group


@pytest.mark.parametrize(("most", "beside"), [(4, False), (3, True)])
def test_advantages_of_a_large_batch(most: int, beside: bool, tmp_path, monkeypatch) -> None:
    """The batch has 4 samples. One of its groups is dropped meanwhile: another takes its place."""
    monkeypatch.setattr(flow, "_MOST_AT_ONCE", most)

    async def run() -> list[int]:
        harness = Harness(tmp_path, oversample=2.0)
        loop, asked = asyncio.get_running_loop(), []

        def slot(outcomes):
            asked.append(threading.get_ident() != threading.main_thread().ident)
            if asked == [True]:
                asyncio.run_coroutine_threadsafe(distrust(), loop).result(60)
            return outcomes.rewards_n - 0.5

        async def distrust() -> None:
            harness.flow.distrust("bad")

        harness.flow._advantage_slots = {"": slot}
        await harness.start()
        await settle()
        for group in list(harness.answers.open):
            worker = "bad" if group == 1 else "w"
            harness.answers.generate(group, harness.latest, worker=worker)
        batch, _ = await asyncio.wait_for(harness.flow.batch(1), 60)
        assert asked == ([True, True] if beside else [False])
        assert all(one.tolist() == [-0.5, 0.5] for one in batch.advantages)
        return [group.id for group in batch.groups]

    assert asyncio.run(run()) == ([0, 2] if beside else [0, 1])


@pytest.mark.parametrize(
    ("rewards", "deterministic", "issued"),
    [((0.0, 1.0), False, 8), ((0.0, 0.0), False, 9), ((0.0, 0.0), True, 9)],
)
def test_the_groups_of_a_large_step_are_issued_a_few_at_a_time(
    rewards: tuple[float, float],
    deterministic: bool,
    issued: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Group 0 is answered before the last ones are issued; if it is rejected, another one is.

    In a deterministic run it is chosen with the scores of that moment, so all are issued at once.
    """
    monkeypatch.setattr(issuing, "MOST_BEGUN", 3)

    async def run() -> list[int]:
        harness = Harness(tmp_path, groups=8, filters=(MixedOnly(),), deterministic=deterministic)
        await harness.start()
        sizes = [0]
        while len(sizes) < 20:
            await asyncio.sleep(0)
            sizes.append(len(harness.answers.open))
            if sizes[-1] and not any(sizes[:-1]):
                assert (sizes[-1] == 8) == deterministic
                harness.answers.generate(0, 0, rewards)
        assert deterministic or max(np.diff(sizes)) <= 3
        await settle()
        return sorted(harness.answers.open)

    assert asyncio.run(run()) == list(range(1, issued))


class Figure:
    """A figure that a device computes while others wait for it."""

    def __init__(self) -> None:
        self.computed = threading.Event()

    def __float__(self) -> float:
        assert self.computed.wait(60)
        return 2.5


def test_metrics_that_wait_for_a_device() -> None:
    rewards = SimpleNamespace(replaced=3)
    fleet = SimpleNamespace(workers={})
    generation = SimpleNamespace(pools=(rewards,), scaler=None, fleet=fleet)
    figures = StepFigures(section_with(), generation, {})  # pyright: ignore[reportArgumentType]
    batch = make_batch(1, [make_group([0.0, 1.0])])
    sums = {"tokens": 0.0, "sequences": 0.0, "gap_count": 0.0, "gap_hist": np.zeros((14, 64))}

    async def run() -> tuple[dict[str, float], dict[str, float]]:
        figure = Figure()
        trained = {**sums, "learning/loss": figure}
        ended = asyncio.ensure_future(
            figures.take(FinishedStep(batch, StepStats(), trained), {"machine/x": 1.0})
        )
        await asyncio.sleep(0)
        rewards.replaced = 5  # after its end: this is of the next step
        figure.computed.set()
        first = await ended
        return first, await figures.so_far(FinishedStep(batch, StepStats(), {}))

    first, second = asyncio.run(run())
    assert first["learning/loss"] == 2.5 and first["machine/x"] == 1.0
    assert first["reward/processes_replaced"] == 3 and second["reward/processes_replaced"] == 2
