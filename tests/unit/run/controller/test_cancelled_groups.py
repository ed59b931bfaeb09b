"""Groups that can no longer train: their generation is ended, and what that saved is counted."""

from collections import Counter
from pathlib import Path

import pytest
from flow_harness import Harness, settle
from scored_groups import scored_group

from rlax_plugin.run.controller.screening import Savings
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit


def dropped(run: Harness) -> list[ev.Dropped]:
    return [
        event
        for segment, _ in journal.read(run.files)
        for event in segment.events
        if isinstance(event, ev.Dropped)
    ]


async def test_spare_begun_too_early_is_dropped_when_its_batch_is_full(tmp_path: Path) -> None:
    run = Harness(tmp_path, 1, 1, groups=2, oversample=2.0, last_step=2)
    flow, answers = run.flow, run.answers
    await run.begin()
    assert sorted(answers.open) == [0, 1, 2, 3]
    for group in (0, 1, 2):
        answers.begin(group, 0)
    await answers.answer(0, 0, length=5)
    assert answers.oldest == 0
    await answers.answer(1, 0, length=2)
    batch, _ = await flow.batch(1)
    # At once, before version 1 is there: what is begun with version 0 is of no use any more.
    assert [g.id for g in batch.groups] == [0, 1]
    assert answers.oldest == 1 and answers.too_old() == [2]
    answers.give_up(2, (3, 0))
    answers.wait_for_newer(3)
    await settle()
    assert sorted(run.run_state.open) == [3]  # it can still be begun with version 1
    await run.published(1)
    assert sorted(answers.open) == [3, 4]
    for group in (3, 4):
        await answers.answer(group, 1)
    batch, stats = await flow.batch(2)
    assert [g.id for g in batch.groups] == [3, 4]
    await flow.commit()
    # Lengths were 5, 5, 2, 2. Behind three tokens: 5 - 3. Of a new one: 14 / 4.
    assert dropped(run) == [ev.Dropped(2, "not_needed", samples=2, tokens=2 + 4)]
    assert (stats.dropped, stats.cancelled) == (1, 1)
    assert (stats.samples_saved, stats.tokens_saved) == (2, 6)
    totals = run.run_state.totals
    assert totals.dropped == Counter({"not_needed": 1})
    assert (totals.samples_saved, totals.tokens_saved) == (2, 6)
    assert audit(run.files).violation is None


async def test_what_is_fresh_enough_for_the_next_step_goes_on(tmp_path: Path) -> None:
    """Staleness 2: a group that was begun with version 0 may train at step 2, not at step 3."""
    run = Harness(tmp_path, 1, 2, groups=1, oversample=2.0)
    flow, answers = run.flow, run.answers
    await run.begin()
    assert sorted(answers.open) == [0, 1, 2, 3]
    for group in (0, 1, 2, 3):
        answers.begin(group, 0)
    await answers.answer(0, 0)
    await flow.batch(1)
    assert answers.too_old() == []
    run.publish(1)
    await answers.answer(1, 0)
    await flow.batch(2)
    assert answers.too_old() == [2, 3]


async def test_a_resumed_run_knows_what_was_given_up(tmp_path: Path) -> None:
    run = Harness(tmp_path, 1, 1, groups=1, oversample=2.0)
    await run.begin()
    answers = run.answers
    for group in (0, 1):
        answers.begin(group, 0)
    await answers.answer(0, 0)
    await run.flow.batch(1)
    answers.give_up(1)
    await settle()
    await run.flow.commit()
    totals = run.run_state.totals
    await run.supervision.close()
    run.recorder.close()
    again = Harness(tmp_path, 1, 1, groups=1, oversample=2.0)
    await again.start()
    _, stats = await again.flow.batch(1)
    assert stats.dropped == 0  # it was given up after the batch
    await settle()
    assert again.run_state.totals.dropped == totals.dropped == {"not_needed": 1}
    assert again.run_state.totals.tokens_saved == totals.tokens_saved == 3
    assert sorted(again.run_state.open) == []
    await again.supervision.close()


@pytest.mark.parametrize(
    ("so_far", "expected"),
    [
        ((), 0),
        ((0,), 5),  # (2 + 4 + 9) / 3
        ((4,), 5),  # 9 - 4
        ((9,), 0),  # none was longer
        ((0, 3, 3), 5 + 2 * 3.5),  # (1 + 6) / 2 for each of the others
    ],
)
def test_savings_are_what_longer_samples_took_beyond(so_far, expected) -> None:
    savings = Savings()
    assert savings.tokens((0, 1)) == 0  # nothing is known
    savings.observe(scored_group(0, (2, 1.0), (4, None), (9, 0.0)))
    assert savings.tokens(so_far) == expected
