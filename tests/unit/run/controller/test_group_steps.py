"""Each group has the temperature and the reward weights of the step of its oldest weights."""

import pytest
from flow_harness import Harness, MixedOnly

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.run.state import journal
from rlax_plugin.testing import make_batch, make_group
from rlax_plugin.tools.commands.audit import audit
from rlax_plugin.training.objective.batches import TEMPERATURE, build_arrays

COOLS = {"from": 1.5, "to": 0.5, "steps": 2}  # 1.5, 1.0, 0.5


def harness(directory, **more):
    return Harness(directory, 1, 2, temperature=COOLS, filters=(MixedOnly(),), **more)


def temperatures(run):
    return {g: request.sampling.temperature for g, (request, _) in run.answers.open.items()}


async def test_a_group_keeps_the_temperature_that_it_was_issued_with(tmp_path) -> None:
    run = harness(tmp_path)
    await run.begin()
    # For steps 1 and 2, and of version 0 at the oldest.
    assert temperatures(run) == {0: 1.5, 1: 1.5, 2: 1.5, 3: 1.5}
    for group in (0, 1):
        await run.answers.answer(group, 0)
    await run.flow.batch(1)
    await run.checkpoint(1)
    await run.published(1)
    assert temperatures(run) == {2: 1.5, 3: 1.5, 4: 1.0, 5: 1.0}
    run.lose_worker(2)
    assert temperatures(run)[2] == 1.5
    await run.answers.answer(2, 1)  # with newer weights than it needs
    await run.answers.answer(3, 0, rewards=(0.0, 0.0))  # rejected; the next one replaces it
    await run.answers.answer(4, 1)
    batch, _ = await run.flow.batch(2)
    assert [(g.id, g.temperature) for g in batch.groups] == [(2, 1.5), (4, 1.0)]
    assert run.answers.steps == [1, 1, 1, 1, 2]
    await run.flow.commit()
    report = audit(run.files)
    assert report.violation is None
    recorded = [
        one
        for segment, _ in journal.read(run.files)
        for one in journal.read_samples(run.files, segment)
    ]
    assert {one.group.id: one.group.temperature for one in recorded} == {
        **{0: 1.5, 1: 1.5, 2: 1.5, 3: 1.5, 4: 1.0}
    }
    run.ledger.close()
    # Killed after step 1: step 2 trains again as recorded, and what was in flight comes again.
    again = harness(tmp_path, step=1)
    await again.start()
    batch, _ = await again.flow.batch(2)
    assert [(g.id, g.temperature) for g in batch.groups] == [(2, 1.5), (4, 1.0)]
    await again.published(2)
    assert temperatures(again)[5] == 1.0


async def test_the_audit_finds_another_temperature(tmp_path) -> None:
    run = harness(tmp_path)
    await run.begin()
    for group in (0, 1):
        await run.answers.answer(group, 0)
    await run.flow.batch(1)
    await run.flow.commit()
    config = run.files.get("config.yml").decode()
    run.files.put("config.yml", config.replace("from: 1.5", "from: 1.4").encode())
    violation = audit(run.files).violation
    assert "temperature: expected 1.4, as the journal says, found 1.5" in str(violation)


def test_a_batch_has_the_temperature_of_each_sampled_token() -> None:
    """Groups of samples of 2 and 3 tokens, after a prompt of 2; the last sample has no score."""
    groups = [make_group(id=0, temperature=1.5), make_group((1.0, None), id=1, temperature=0.5)]
    prompt = groups[0].episodes[0].trajectories[0].turns[0].given.size
    arrays = build_arrays(make_batch(1, groups), rows=4, length=8, temperatures=True)
    first = prompt - 1
    expected = [[1.0] * 8 for _ in range(4)]
    for row, length, temperature in ((0, 2, 1.5), (1, 3, 1.5), (2, 2, 0.5)):
        expected[row][first : first + length] = [temperature] * length
    assert arrays[TEMPERATURE].tolist() == expected
    assert TEMPERATURE not in build_arrays(make_batch(1, groups), rows=4, length=8)


@pytest.mark.parametrize("temperature", [None, 0.0, float("nan")])
def test_a_group_without_a_temperature_does_not_train_in_such_a_run(temperature) -> None:
    groups = [make_group(id=0, temperature=temperature)]
    with pytest.raises(TrainingError, match="expected one above 0, at which"):
        build_arrays(make_batch(1, groups), rows=2, length=8, temperatures=True)
