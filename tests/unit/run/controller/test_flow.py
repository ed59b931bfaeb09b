"""The flow's order and its two bounds, with a dispatcher that answers when the test says so."""

import asyncio
import dataclasses
from collections import Counter

import pytest
from flow_harness import Harness, MixedOnly, settle

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.testing import make_sampled


@pytest.fixture
def make(tmp_path):
    def make(*args, **kwargs):
        harness = Harness(tmp_path, *args, **kwargs)
        return harness.flow, harness.answers, harness

    return make


async def test_lockstep_issues_one_step_and_waits_for_the_next_version(make):
    flow, answers, run = make(1, 1)
    await run.begin()
    assert sorted(answers.open) == [0, 1]
    await answers.answer(0, 0)
    await answers.answer(1, 0)
    batch, _ = await flow.batch(1)
    assert [g.id for g in batch.groups] == [0, 1]
    await settle()
    assert answers.open == {}  # version 1 does not exist yet
    await run.published(1)
    assert sorted(answers.open) == [2, 3]
    assert {r.min_version for r, _ in answers.open.values()} == {1}


async def test_one_step_off_keeps_two_steps_outstanding(make):
    flow, answers, run = make(1, 2)
    await run.begin()
    assert sorted(answers.open) == [0, 1, 2, 3]
    for i in (0, 1):
        await answers.answer(i, 0)
    await flow.batch(1)
    await run.published(1)
    # Groups 2 and 3 train at step 2 with version 0 (staleness 2); 4 and 5 want version 1.
    assert [answers.open[i][0].min_version for i in (4, 5)] == [1, 1]


async def test_oldest_issued_trains_first_whatever_ends_first(make):
    flow, answers, run = make(1, 2)
    await run.begin()
    for i in (3, 2, 1):
        await answers.answer(i, 0)
    waiting = asyncio.ensure_future(flow.batch(1))
    await settle()
    assert not waiting.done()  # group 0 is older and still out
    await answers.answer(0, 0)
    batch, _ = await waiting
    assert [g.id for g in batch.groups] == [0, 1]


async def test_tokens_of_a_worker_that_is_not_trusted_are_not_gone_on_with(make):
    """A worker had begun the group, another one ended it, and the first is quarantined then."""
    _, answers, run = make(1, 2)
    answers.slow_rewards = True
    await run.begin()
    request, future = answers.open[0]
    begun = make_sampled(tokens=[5], workers=("bad",), finish=None)
    resumed = dataclasses.replace(request, resume=(begun,) * len(request.seeds))
    answers.open[0] = (resumed, future)
    answers.generate(0, 0, worker="bad")
    await settle()
    run.quarantine("bad")
    answers.reward(0)
    await settle()
    again, _ = answers.open[0]
    assert again.attempt == 2 and again.resume == ()


async def test_a_worker_that_takes_the_name_of_a_quarantined_one_is_trusted(make):
    _, answers, run = make(1, 1, groups=2)
    await run.begin()
    answers.generate(0, 0, worker="a")
    await settle()
    run.quarantine("a")  # group 0 is dropped, and another one issued
    await settle()
    assert run.run_state.totals.dropped == {"quarantined": 1}
    assert sorted(answers.open) == [1, 2]
    for group in (1, 2):
        answers.generate(group, 0, worker="a")  # its launcher has started it again
    await settle()
    assert sorted(run.run_state.ready) == [1, 2] and not answers.open


async def test_samples_of_a_worker_quarantined_during_replay_are_not_trained(make):
    _, answers, killed = make(1, 1, groups=2)
    await killed.begin()
    answers.generate(0, 0, worker="bad")
    answers.generate(1, 0, worker="good")
    await settle()
    await killed.recorder.flush()
    await killed.supervision.close()
    killed.recorder.close()
    flow, answers, resumed = make(1, 1, groups=2)
    flow.distrust("bad")  # before the run is live again
    await resumed.begin()
    assert sorted(resumed.run_state.ready) == [1] and sorted(answers.open) == [2]
    assert resumed.run_state.totals.dropped == {"quarantined": 1}


async def test_what_was_in_flight_when_the_trainer_ended_is_issued_again_as_that(make):
    _, _, killed = make(1, 1, groups=1)
    await killed.begin()
    await killed.recorder.flush()
    await killed.supervision.close()
    killed.recorder.close()
    flow, answers, resumed = make(1, 1, groups=1)
    await resumed.begin()
    assert answers.open[0][0].attempt == 2
    await answers.answer(0, 0)
    _, stats = await flow.batch(1)
    assert stats.requests == {"trainer_restarted": 1}


async def test_too_stale_groups_are_dropped_and_replaced(make):
    flow, answers, run = make(1, 1, groups=2)
    await run.begin()
    for i in (0, 1):
        await answers.answer(i, 0)
    await flow.batch(1)
    await run.published(1)
    await answers.answer(2, 0)  # a worker that had not reloaded: staleness 2 > 1
    await answers.answer(3, 1)
    waiting = asyncio.ensure_future(flow.batch(2))
    await settle()
    assert run.run_state.totals.dropped == Counter({"too_stale": 1})
    assert sorted(answers.open) == [4]
    await answers.answer(4, 1)
    batch, stats = await waiting
    assert [g.id for g in batch.groups] == [3, 4]
    assert stats.dropped == 1
    assert run.run_state.totals.max_staleness == 1


async def test_rejected_groups_are_refilled_until_the_limit_names_the_filters(make):
    flow, answers, run = make(groups=2, filters=[MixedOnly()], refill=3)
    await run.begin()
    await answers.answer(0, 0)
    for i in range(1, 6):
        await answers.answer(i, 0, rewards=(1.0, 1.0))
    with pytest.raises(TrainingError, match=r"only 1 of 2 groups were accepted.*all rewards equal"):
        await asyncio.wait_for(flow.batch(1), 60)


async def test_a_run_whose_rewards_fail_ends_with_one_of_their_errors(make):
    flow, answers, run = make(groups=2, filters=[MixedOnly()], refill=2)
    await run.begin()
    await answers.answer(0, 0, rewards=(1.0, 1.0))
    for i in range(1, 4):
        await answers.answer(i, 0, rewards=(None, None))
    with pytest.raises(TrainingError) as failure:
        await asyncio.wait_for(flow.batch(1), 60)
    assert "(rejected: 3 because all rewards failed, 1 because " in str(failure.value)
    said = "such as: reward_failed: it raised; logs/rewards.log says more"
    assert str(failure.value).endswith(said)


async def test_errored_samples_count_neither_as_zero_nor_in_the_pass_rate(make):
    flow, answers, run = make(groups=1)
    await run.begin()
    prompt = answers.open[0][0].context[0]
    await answers.answer(0, 0, rewards=(1.0, None))
    batch, _ = await flow.batch(1)
    assert run.run_state.rates.counts([prompt]) == (1.0, 0.0)
    assert batch.step == 1 and [a.tolist() for a in batch.advantages] == [
        [0.0, 0.0]
    ]  # one valid sample: its own mean
    assert run.run_state.totals.reward_errors == 1


async def test_a_deep_pipeline_that_waits_for_its_trainer_is_no_failure(make):
    flow, answers, run = make(1, 16, groups=2, refill=8)  # may have 16 steps' worth outstanding
    await run.begin()
    assert len(answers.open) == 16  # as many as one step may issue
    for i in range(16):
        await answers.answer(i, 0)
    batch, _ = await flow.batch(1)
    assert [g.id for g in batch.groups] == [0, 1]


# --- batches of tokens, and packed ones ----------------------------------------------------------


async def generate_all(run, version, lengths):
    """Answers everything that is open with the lengths that belong to it."""
    for group in sorted(run.answers.open):
        await run.answers.answer(group, version, length=lengths[group])


async def test_in_lockstep_missing_tokens_are_issued_for_the_same_step(make):
    """Two groups are expected to hold 16 tokens; a group has twice its length."""
    lengths = {0: 2, 1: 1, 2: 5, 3: 1, 4: 1, 5: 7, 6: 7, 7: 8, 8: 1, 9: 1}
    flow, answers, run = make(1, 1, groups=2, batches={"tokens": 16, "rows": 8}, last_step=3)
    await run.begin()
    assert sorted(answers.open) == [0, 1]
    waiting = asyncio.ensure_future(flow.batch(1))
    await answers.answer(0, 0, length=lengths[0])
    # 4 of 16 tokens are half a group's: with group 1 there is room for one, not for two.
    assert sorted(answers.open) == [1, 2]
    await generate_all(run, 0, lengths)  # 4 + 2 + 10 tokens, and group 3, issued in between
    batch, stats = await waiting
    assert [g.id for g in batch.groups] == [0, 1, 2]
    assert stats.issued == 4 and sorted(answers.open) == [3]
    await run.published(1)
    assert sorted(answers.open) == [3, 4]  # a worker may still generate 3 with version 1
    await answers.answer(3, 0, length=lengths[3])
    waiting = asyncio.ensure_future(flow.batch(2))
    await settle()
    assert run.run_state.totals.dropped == Counter({"too_stale": 1})  # it did not
    assert sorted(answers.open) == [4, 5]
    await generate_all(run, 1, lengths)
    batch, _ = await waiting
    assert [g.id for g in batch.groups] == [4, 5]  # 2 + 14 tokens
    await run.published(2)
    await generate_all(run, 2, lengths)
    last, _ = await flow.batch(3)
    assert [g.id for g in last.groups] == [6, 7]  # 14 and 16: one alone is not enough
    await run.published(3)
    assert answers.open == {}  # the run is at its end
    assert run.run_state.totals.trained == 7 and run.run_state.totals.issued == 8


async def test_tokens_that_never_come_end_the_run_with_their_number(make):
    flow, answers, run = make(groups=2, refill=2, batches={"tokens": 99, "rows": 50})
    await run.begin()
    while answers.open:
        await generate_all(run, 0, dict.fromkeys(range(99), 3))
    with pytest.raises(TrainingError, match=r"4 groups were issued and only 24 of 99 tokens"):
        await asyncio.wait_for(flow.batch(1), 60)


def test_deterministic_runs_do_the_same_whenever_the_trainer_asks(tmp_path):
    lengths = dict(enumerate([3, 1, 8, 8, 8, 2, 2, 8, 1, 1, 6, *[1] * 9]))

    async def history(directory, asks_early):
        batches = {"tokens": 24, "rows": 4, "sequences_per_row": 3}
        run = Harness(directory, groups=4, deterministic=True, batches=batches, last_step=3)
        await run.start()
        for step in (1, 2, 3):
            asked = asyncio.ensure_future(run.flow.batch(step)) if asks_early else None
            await settle()
            if step > 1:
                await run.published(step - 1)
            while run.answers.open:
                for group in sorted(run.answers.open, reverse=asks_early):
                    await run.answers.answer(group, step - 1, length=lengths[group])
            await (asked or run.flow.batch(step))
        await run.flow.commit()
        return [event for segment, _ in journal.read(run.files) for event in segment.events]

    late = asyncio.run(history(tmp_path / "late", False))
    assert asyncio.run(history(tmp_path / "early", True)) == late
    # 24 tokens: 6 + 2 + 16; 4 + 4 + 16; 12 + 5 * 2, which leaves no place for a thirteenth sample.
    trained = [event.groups for event in late if isinstance(event, ev.Trained)]
    assert trained == [(0, 1, 2), (5, 6, 7), (10, 11, 12, 13, 14, 15)]
    # Group 4 was issued when groups 0 and 1 were seen to be short, before 2 was seen to be long.
    dropped = [event.group for event in late if isinstance(event, ev.Dropped)]
    assert dropped == [3, 4, 8, 9, 16]


async def test_nothing_is_issued_once_the_run_is_closing(make):
    flow, answers, run = make(1, 1)
    await run.begin()
    for group in (0, 1):
        await answers.answer(group, 0)
    await flow.batch(1)
    await run.supervision.close()
    run.publish(1)  # such as a version that was still being written
    await settle()
    assert answers.open == {} and run.run_state.open == {}


async def test_what_is_under_way_when_training_ends_stays_open_and_fails_nothing(make):
    flow, answers, run = make(1, 2)
    await run.begin()
    for group in (0, 1):
        await answers.answer(group, 0)
    await flow.batch(1)
    _, late = answers.open[2]
    flow.end()
    await settle()
    assert late.cancelled() and not run.supervision.failed
    await run.published(1)
    assert sorted(run.run_state.open) == [2, 3]  # a resumed run issues them again
    commit, saved = await flow.commit()
    assert [one["group"] for one in saved.document["open"]] == [2, 3] and commit.number > 0
