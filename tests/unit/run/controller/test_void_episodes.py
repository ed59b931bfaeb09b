"""Episodes that will not train are ended, and their group is generated anew."""

from flow_harness import Harness, settle

from rlax_plugin.base.types import Key
from rlax_plugin.ports.environment import Outcome


async def test_episodes_that_become_too_stale_end_and_their_group_is_issued_again(tmp_path) -> None:
    """A spare group holds up no batch, and the policy is asked for nothing that cannot train."""

    async def two_turns(prompt, played):  # type: ignore[no-untyped-def]
        await played.sample([5])
        return Outcome()

    run = Harness(tmp_path, 1, 1, groups=1, oversample=2.0, play=two_turns)
    flow, answers = run.flow, run.answers
    await run.begin()
    for group in (0, 1):
        answers.generate(group, 0)
    await settle()
    for sample in (0, 1):
        answers.generate_turn(Key("train", 0, sample, 0, 1), 0)
    await settle()
    assert sorted(answers.playing) == [(1, 0), (1, 1)]
    await flow.batch(1)
    await settle()
    assert not answers.playing and not answers.later
    await run.published(1)
    request, _ = answers.open[1]
    assert (request.attempt, request.min_version) == (2, 1)
    answers.generate(1, 1)
    await settle()
    for sample in (0, 1):
        answers.generate_turn(Key("train", 1, sample, 0, 1), 1)
    batch, stats = await flow.batch(2)
    assert [(g.id, g.attempt, g.oldest_version) for g in batch.groups] == [(1, 2, 1)]
    assert not run.run_state.totals.dropped and run.run_state.totals.reissued == 1
    assert stats.requests == {"too_stale": 1}
