"""Which samples of a batch train: its rows, its records, and answers that are refused."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from flow_harness import Harness
from histories import History, place
from sections import section_with

from rlax_plugin.api import ArraySpec, BatchSignal, BuildContext, Choice, Selection, chosen_signals
from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import TrainBatch
from rlax_plugin.build import registry_for
from rlax_plugin.run.controller.chosen import Chosen, ChosenSelection
from rlax_plugin.run.state import journal, samples
from rlax_plugin.run.state.read_samples import as_batch, from_table
from rlax_plugin.testing import make_batch, make_group
from rlax_plugin.tools.commands.audit import Rule, audit
from rlax_plugin.training.objective.batches import build_arrays
from rlax_plugin.training.objective.update_sums import update_sums


class Answering(Selection):
    def __init__(self, answer: Any):
        self.answer = answer

    def repeats(self, batch: TrainBatch, count: int, rng: np.random.Generator) -> Any:
        return self.answer(batch, count, rng) if callable(self.answer) else self.answer


def selection_that(answer: Any, rows: int = 2) -> ChosenSelection:
    """A selection that returns this, or what it makes of its arguments."""
    chosen = Chosen("rlax.curation.selection", "mine", "tb_mine", Answering(answer))
    return ChosenSelection(chosen, rows, seed=7)


def arrays(*groups: list[int]) -> list[np.ndarray]:
    return [np.array(one) for one in groups]


BATCH = make_batch(groups=[make_group((1.0, 0.0, 0.5)), make_group((2.0, None, 0.0), id=1)])


def test_samples_have_a_row_for_each_time_that_they_train():
    """Group 1 has samples of 2 and 4 tokens; its first sample trains twice, and its last once."""
    batch = selection_that(arrays([0, 1, 0], [2, 0, 1])).selected(BATCH)
    found = build_arrays(batch, rows=4, length=8)
    assert found["rl_mask"].sum(axis=1).tolist() == [3, 2, 2, 4]
    of_row = {name: array.max(axis=1).tolist() for name, array in found.items()}
    assert of_row["rl_group"] == [1, 2, 2, 2] and of_row["rl_group_size"] == [1, 3, 3, 3]
    assert of_row["rl_sample"] == [1, 0, 3, 2]
    assert of_row["rl_episode"] == [1, 2, 3, 4]  # copies are samples of their own
    sums = {name: array.max(axis=1).tolist() for name, array in update_sums(found).items()}
    assert sums["rl_sample_tokens"] == [3, 2, 2, 4] and sums["rl_group_tokens"] == [3, 8, 8, 8]
    advantages = found["rl_advantages"].sum(axis=1) / found["rl_mask"].sum(axis=1)
    assert advantages.tolist() == [-0.5, 1.0, 1.0, -1.0]  # among all samples of each group


def test_repeats_are_recorded_with_the_samples_that_do_not_train():
    batch = selection_that(arrays([0, 1, 0], [2, 0, 1])).selected(BATCH)
    table = samples.of_batch(batch)
    assert table["repeats"].to_pylist() == [0, 1, 0, 2, 0, 1]
    again = as_batch(1, from_table(table))
    assert [own.tolist() for own in again.repeats] == [[0, 1, 0], [2, 0, 1]]
    laid_out = [build_arrays(one, rows=4, length=8) for one in (batch, again)]
    assert all(np.array_equal(laid_out[0][name], laid_out[1][name]) for name in laid_out[0])
    assert as_batch(1, from_table(samples.of_batch(BATCH))).repeats == ()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "returned from repeats None: expected an array for each of 2 groups"),
        (arrays([1, 1, 1]), "expected an array for each of 2 groups"),
        (arrays([1, 0, 0], [1, 0]), r"array\(\[1, 0\]\) for group 1: expected one number"),
        ([[1, 0, 0], [1, 0, 0]], r"\[1, 0, 0\] for group 0: expected an array of integers"),
        ([np.ones(3, bool)] * 2, "for group 0: expected an array of integers"),
        (arrays([-1, 1, 1], [0, 0, 0]), "for group 0: expected one number, at least 0"),
        (arrays([1, 1, 0], [1, 1, 0]), "for group 1: expected 0 for each episode without a rew"),
        (arrays([0, 0, 0], [0, 0, 0]), "repeats that sum to 0: expected 1 to 4"),
        (arrays([2, 1, 1], [1, 0, 0]), "repeats that sum to 5: expected 1 to 4"),
    ],
)
def test_other_answers_name_plugin_and_key(answer: Any, problem: str):
    with pytest.raises(PluginError, match=problem) as caught:
        selection_that(answer).selected(BATCH)
    assert str(caught.value).startswith("plug-in 'tb_mine': rlax.curation.selection = 'mine' ")


async def test_a_batch_that_is_made_again_selects_the_same(tmp_path: Path):
    """As after a restart: the generator depends on the seed and the step alone."""
    seen: list[tuple[int, int, int]] = []

    def repeats(batch: TrainBatch, count: int, rng: np.random.Generator) -> list[np.ndarray]:
        seen.append((batch.step, count, int(rng.integers(1 << 30))))
        return [np.arange(len(group.episodes)) % 2 for group in batch.groups]

    run = Harness(tmp_path, 1, 1)
    run.flow._selection = selection_that(repeats)
    await run.begin()
    for group in (0, 1):
        await run.answers.answer(group, 0)
    batch, stats = await run.flow.batch(1)
    stats.committed.result(10)
    assert [own.tolist() for own in batch.repeats] == [[0, 1]] * 2
    (segment, _), *_ = journal.read(run.files)
    recorded = as_batch(1, journal.read_samples(run.files, segment))
    assert [own.tolist() for own in recorded.repeats] == [[0, 1]] * 2
    again = selection_that(repeats)
    again.selected(batch)
    again.selected(TrainBatch(2, batch.groups, batch.advantages))
    assert seen[0] == seen[1] == (1, 4, seen[0][2]) and seen[2][2] != seen[0][2]


@pytest.mark.parametrize(
    ("selection", "repeats", "problem"),
    [
        ({"name": "x", "samples": 1}, [1, 0], None),
        ({"name": "x"}, [0, 2], None),
        (None, [1, 0], "the config has no rlax.curation.selection"),
        ({"name": "x"}, [None, None], "expected an array for each of 2 groups"),
        ({"name": "x", "samples": 1}, [1, 2], "repeats that sum to 6: expected 1 to 2"),
    ],
)
def test_the_audit_knows_how_often_samples_may_train(
    tmp_path: Path, selection: Any, repeats: list[int | None], problem: str | None
):
    """Each of six trained groups has a sample of 2 tokens and one of 3."""
    history = History()
    history.config["curation"] = {"selection": selection}

    def change(rows: pa.Table) -> pa.Table:
        of_rows = zip(rows["state"].to_pylist(), rows["sample"].to_pylist(), strict=True)
        new = [repeats[sample] if state == "trained" else None for state, sample in of_rows]
        at = rows.column_names.index("repeats")
        return rows.set_column(at, "repeats", pa.array(new, pa.int32()))

    for segment in history.segments:
        segment.change = change
    history.write(RunFiles(tmp_path))
    report = audit(RunFiles(tmp_path))
    if problem is None:
        assert report.clean, report.violation
        trained = sum(length for length, own in zip((2, 3), repeats, strict=True) if own)
        assert (report.figures.samples, report.figures.tokens) == (6, 6 * trained)
    else:
        assert place(report) == (Rule.BATCH_DIFFERS, 1, 1, None)
        assert report.violation is not None and problem in report.violation.message


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, r"selection\.samples = 9: must not exceed rlax\.rollouts\.group_size = 8"),
        ({"batches": {"sequences_per_row": 2}}, "= 'x': must be null with .*sequences_per_row"),
        ({"batches": {"tokens": 9}}, "= 'x': must be null with rlax.batches.tokens"),
        ({"batches": {"rows": 31}}, r"rows = 31: .* groups_per_step \* rlax.*samples = 32 sam"),
        ({"environment": {"name": "y"}}, r"max_trajectories = 0: must be 1 with rlax\.curation"),
    ],
)
def test_configs_whose_rows_a_selection_cannot_fill(values: dict[str, Any], problem: str):
    given = {"name": "x", "samples": 4 if values else 9}
    with pytest.raises(ConfigError, match=problem):
        section_with(curation={"selection": given}, **values)


def test_a_batch_has_as_many_rows_as_are_selected():
    section = section_with(curation={"selection": {"name": "x", "samples": 2}})
    assert section.batch_rows == 8 * 2 and section_with().batch_rows == 8 * 8
    assert section_with(curation={"selection": {"name": "x"}}).batch_rows == 8 * 8


def test_advantages_that_the_trainer_computes_need_every_sample():
    """With a KL in the reward, or a signal that gives values: the trainer has no other samples."""
    kl = {"coefficient": 0.1, "placement": "reward"}
    section = section_with(
        curation={"selection": {"name": "x"}}, objective={"preset": "reinforce_plus_plus", "kl": kl}
    )
    context = BuildContext.outside_run(section)
    with pytest.raises(ConfigError, match=r"selection = 'x': must be null with .*placement: rew"):
        registry_for(section).slots(context)

    class Values(BatchSignal):
        arrays = MappingProxyType({"rl_values": ArraySpec(np.dtype(np.float32))})

        def complete(self, model: Any, step: int, batch: Any) -> Any:
            return {}

    listed = section.model_copy(update={"signals": (Choice(name="mine"),)})
    context = replace(BuildContext.outside_run(listed), part=lambda *_: Values())
    with pytest.raises(ConfigError, match=r"rlax.signals.0 = 'mine', which adds rl_values"):
        chosen_signals(context, lambda outcomes: outcomes.rewards_n)
