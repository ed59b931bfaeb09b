"""Pass rates in snapshots: what a resume finds is what was there, or one clear error."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import rlax_curation
from data_sets import listed, tables
from flow_harness import Harness, Source, settle

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.data.curation.pass_rate_files import read_table
from rlax_plugin.run.state.snapshots import (
    pack_rates,
    rates_name,
    read_snapshot,
    snapshot_name,
    snapshot_steps,
    unpack_rates,
)
from rlax_plugin.testing import make_prompt, make_rates

PROMPTS = Source().prompts("train")


async def trained(run: Harness, steps: range) -> list[str]:
    """Trains steps of four groups, of which prompt p passes p of 9 times; returns the prompts."""
    asked: list[str] = []
    for step in steps:
        await settle()
        for group in sorted(run.answers.open):
            asked.append(run.run_state.open[group].prompt.id)
            passes = np.random.default_rng(group).random(2) < int(asked[-1][1:]) / 9
            await run.answers.answer(group, step - 1, rewards=passes.astype(float).tolist())
        await run.flow.batch(step)
        run.publish(step)
    return asked


SAMPLERS = {
    "learnability": lambda: rlax_curation.Learnability(
        rlax_curation.LearnabilityConfig(candidates=4)
    ),
    "greso": lambda: rlax_curation.Greso(rlax_curation.GresoConfig(window=3)),
}


def harness(directory: Path, step: int = 0, sampler: str = "learnability") -> Harness:
    return Harness(directory, groups=4, step=step, sampler=SAMPLERS[sampler]())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_run_draws_from_the_same_posteriors(tmp_path: Path, sampler: str) -> None:
    async def undisturbed() -> tuple[list[str], list[float]]:
        run = harness(tmp_path / "one", sampler=sampler)
        await run.start()
        asked = await trained(run, range(1, 9))
        return asked, np.concatenate(run.run_state.rates.posterior()).tolist()

    async def killed() -> tuple[list[str], list[float]]:
        run = harness(tmp_path / "two", sampler=sampler)
        await run.start()
        asked = await trained(run, range(1, 4))
        await run.checkpoint(3)
        await trained(run, range(4, 6))  # and these steps are lost with the process
        run.recorder.close()
        again = harness(tmp_path / "two", step=3, sampler=sampler)
        recovery = await again.start()
        for step in (4, 5):
            batch, _ = await again.flow.batch(step)
            asked += [group.prompt.id for group in batch.groups]
            again.publish(step)
        assert recovery.last_step == 5
        asked += await trained(again, range(6, 9))
        return asked, np.concatenate(again.run_state.rates.posterior()).tolist()

    assert asyncio.run(killed()) == asyncio.run(undisturbed())


async def _with_snapshot(directory: Path) -> Harness:
    run = harness(directory)
    await run.start()
    await trained(run, range(1, 3))
    await run.checkpoint(2)
    return run


def test_a_snapshot_is_a_table_that_other_runs_can_read(tmp_path: Path) -> None:
    run = asyncio.run(_with_snapshot(tmp_path))
    assert snapshot_steps(run.files) == [2]  # one, of two files
    document = json.loads((tmp_path / snapshot_name(2)).read_bytes())
    assert "pass_rates" not in document["run_state"]
    found = read_table(str(tmp_path / rates_name(2)))
    rates = run.run_state.rates
    indices = [int(prompt_id[1:]) for prompt_id in found.table.column("id").to_pylist()]
    assert np.flatnonzero(rates.measured()).tolist() == indices
    for one, other in zip(found.counts(), rates.counts(indices), strict=True):
        assert one.tolist() == other.tolist()
    assert found.about.version == rates.version == 1 and found.about.half_life == 32
    assert found.column("groups").sum() == 8


def test_rates_that_do_not_belong_to_the_snapshot_are_rejected(tmp_path: Path) -> None:
    run = asyncio.run(_with_snapshot(tmp_path))
    path = tmp_path / rates_name(2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    with pytest.raises(TrainingError, match="is not the file that belongs to the snapshot"):
        read_snapshot(run.files, 2, PROMPTS)
    path.unlink()
    with pytest.raises(TrainingError, match=r"00000002.pass_rates.parquet is missing"):
        read_snapshot(run.files, 2, PROMPTS)


def test_rates_of_a_data_set_come_back_by_its_ids(tmp_path: Path) -> None:
    table = tables(listed(*({"question": f"{n}?"} for n in range(5))))["train"]
    rates = make_rates(5, {1: (3, 1), 4: (0, 2)}, version=7)
    about = harness(tmp_path).about
    data = pack_rates(rates.columns(), table, about)
    found = unpack_rates(data, "x", table)
    assert found.version == 7 and found.version_n.tolist() == [-1, 7, -1, -1, 7]
    assert found.passed_n.tolist() == [0, 3, 0, 0, 0] and found.streak_n.tolist() == [
        0,
        0,
        0,
        0,
        -1,
    ]
    with pytest.raises(TrainingError, match="has other prompts"):
        unpack_rates(data, "x", [make_prompt(str(i)) for i in range(5)])
