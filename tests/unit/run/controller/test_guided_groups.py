"""A demonstration in place of a sample: of which groups, how it is recorded, and who counts it."""

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flow_harness import Harness, MixedOnly, Source
from objective_harness import slots_of
from part_stubs import SourceStub
from sections import section_with

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.base.types import group_of
from rlax_plugin.reward.messages import Needs
from rlax_plugin.run.controller.guidance import Guide, check_answers
from rlax_plugin.run.controller.screening import check_rewards
from rlax_plugin.run.metrics.step import FinishedStep, step_metrics
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.logged_samples import read_logged
from rlax_plugin.tools.commands.audit import audit
from rlax_plugin.training.objective.batches import GUIDED, build_arrays

GUIDANCE = {"gamma": 0.1}


class NoReferences(Source):
    def prompts(self, split):
        return [dataclasses.replace(one, reference="") for one in super().prompts(split)]

    def answer_tokens(self, prompt):
        return np.array([1], np.int32)


def harness(directory, guidance=GUIDANCE, **more):
    return Harness(directory, groups=1, filters=(MixedOnly(),), guidance=guidance, **more)


@pytest.mark.parametrize("guidance", [GUIDANCE, {}])
async def test_the_last_sample_of_a_failed_group_becomes_the_right_answer(tmp_path, guidance):
    run = harness(tmp_path, guidance)
    await run.begin()
    await run.answers.answer(0, 0, (0.0, 0.0), length=2)
    batch, stats = await run.flow.batch(1)
    await run.flow.commit()
    (group,) = batch.groups
    own, shown = group.episodes
    assert not own.demonstration and shown.demonstration
    (sampled,) = shown.sampled
    assert sampled.tokens.tolist() == [7, 7, 1] and sampled.logprobs.tolist() == [0, 0, 0]
    assert sampled.versions.tolist() == [0, 0, 0] and sampled.workers == ()
    assert shown.index == 1 and not shown.truncated
    assert group.rewards.tolist() == [0.0, 1.0]
    assert [advantage.tolist() for advantage in batch.advantages] == [[-0.5, 0.5]]
    arrays = build_arrays(batch, rows=2, length=4, guided=True)
    assert arrays[GUIDED].tolist() == [[0, 0, 0, 0], [1, 1, 1, 0]]
    assert arrays["rl_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    # The pass rate and the metrics are the policy's own, of all that it sampled.
    (scored,) = [
        event
        for segment in journal.read(run.files)
        for event in segment[0].events
        if isinstance(event, ev.Scored)
    ]
    assert (scored.passed, scored.scored, scored.rejected) == (0, 2, None)
    assert run.run_state.totals.reward_errors == 0
    found = step_metrics(FinishedStep(batch, stats, {}), section_with(), workers=1, replaced=0)
    assert (found["rollout/samples"], found["rollout/tokens"]) == (2, 4)
    assert (found["length/issued_mean"], found["reward/mean"]) == (2, 0)
    report = audit(run.files)
    assert report.violation is None, report.violation
    (path,) = tmp_path.rglob("samples/**/*.parquet")
    assert pq.read_table(path)["demonstration"].to_pylist() == [None, True]


@pytest.mark.parametrize("reward", [0.0, None])
async def test_an_answer_that_the_rewards_do_not_prefer_is_refused_and_counted(
    tmp_path, reward, caplog
):
    run = harness(tmp_path)
    await run.begin()
    run.answers.shown = reward
    await run.answers.answer(0, 0, (0.0, 0.0))
    stats = run.flow._history.stats
    assert stats.guidance_refused == 1
    (judged,) = stats.scored
    assert judged.reason == "all rewards equal"
    assert not any(episode.demonstration for episode in group_of(judged).episodes)
    assert "not more than the failures" in caplog.text


ONE = np.zeros(0, np.int32)


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([], "is missing"),
        ([(ONE, [7, 1]), (ONE, [7, 1])], "has 2 turns"),
        ([(ONE, [1])], "is missing"),  # without a reference the end alone answers nothing
        ([(ONE, [7, 9, 1])], "has token id 9, which must be from 0 to 8"),
        ([(ONE, [7, 7])], "ended by 'stop' with token 7; stop ids are [1]"),
        ([(ONE, [7, 1, 7, 1])], "has stop id 1 and did not end with it"),
        ([(ONE, [7] * 16 + [1])], "has 17 tokens, 16 were asked for"),
    ],
)
async def test_an_answer_that_could_not_have_been_sampled_is_refused(
    tmp_path, monkeypatch, caplog, turns, why
):
    run = harness(tmp_path)
    monkeypatch.setattr(Source, "answer_turns", lambda self, prompt: turns)
    prompts = [dataclasses.replace(one, reference="") for one in Source().prompts("train")]
    run.run_state.prompts = prompts
    run.answers.vocabulary = 9
    await run.begin()
    await run.answers.answer(0, 0, (0.0, 0.0))
    stats = run.flow._history.stats
    assert stats.guidance_refused == 1 and why in caplog.text
    assert not any(one.demonstration for one in group_of(stats.scored[0]).episodes)


async def test_a_prompt_source_that_fails_is_named(tmp_path, monkeypatch):
    run = harness(tmp_path)
    monkeypatch.setattr(Source, "answer_tokens", lambda self, prompt: np.array([7.5, 1]))
    await run.begin()
    await run.answers.answer(0, 0, (0.0, 0.0))
    with pytest.raises(PluginError, match=r"rlax\.prompt_source\.name = 'x': .*Cannot cast"):
        await run.flow.batch(1)


@pytest.mark.parametrize("rewards", [(0.0, 1.0), (1.0, 1.0), (None, 0.0)])
async def test_groups_that_did_not_fail_as_a_whole_stay_as_they_are(tmp_path, rewards):
    run = harness(tmp_path)
    await run.begin()
    await run.answers.answer(0, 0, rewards)
    (judged,) = run.flow._history.stats.scored
    group = group_of(judged)
    assert not any(episode.demonstration for episode in group.episodes)
    assert np.array_equal(group.rewards, np.array(rewards, float), equal_nan=True)
    assert run.flow._history.stats.guidance_refused == 0


async def test_the_audit_finds_a_demonstration_that_the_config_does_not_allow(tmp_path):
    run = harness(tmp_path)
    await run.begin()
    await run.answers.answer(0, 0, (0.0, 0.0))
    await run.flow.batch(1)
    await run.flow.commit()
    config = run.files.get("config.yml").replace(b"guidance:\n      gamma: 0.1", b"guidance: null")
    assert b"null" in config
    run.files.put("config.yml", config)
    assert "has no rlax.objective.guidance" in str(audit(run.files).violation)


def test_a_config_is_refused_with_which_it_could_not_work():
    section = section_with(objective={"guidance": GUIDANCE})
    with pytest.raises(ConfigError, match="gives no right answers"):
        check_answers(section, SourceStub())
    made: Any = SimpleNamespace(source=NoReferences(), rewards=None, dispatcher=None)
    with pytest.raises(ConfigError, match="no prompt of the split train has a reference"):
        Guide(section, made)
    check_answers(section, Source())
    check_answers(section_with(), SourceStub())
    with pytest.raises(ConfigError, match="scores the samples of a group together"):
        check_rewards(section, Needs(group=True))
    check_rewards(section, Needs())


@pytest.mark.parametrize(
    ("preset", "kept", "note"),
    [
        ("aipo", [[0.0], [0.0, 1.0]], "on 3 of 4 .* groups; 1 demonstrations, .* are left out"),
        ("awr", [[0.0, 1.0], [0.0, 1.0]], "on 4 of 4 logged samples in 2 groups;"),
    ],
)
async def test_a_demonstration_in_a_log_has_no_log_probs_of_a_policy(tmp_path, preset, kept, note):
    run = Harness(tmp_path, groups=2, guidance=GUIDANCE)
    await run.begin()
    await run.answers.answer(0, 0, (0.0, 0.0))
    await run.answers.answer(1, 0, (0.0, 1.0))
    await run.flow.batch(1)
    await run.flow.commit()
    logged = read_logged(
        section_with(
            rollouts={"group_size": 2, "max_new_tokens": 8},
            logged_samples={"path": str(tmp_path)},
            objective={"preset": preset},
        ),
        Source(),
        slots_of(preset),
        {"steps": 1},
    )
    assert [group.rewards.tolist() for group in logged.groups] == kept
    assert re.search(note, logged.note)
    if preset == "awr":  # log-probs of 0 would say that a policy was certain
        assert np.isnan(list(logged.groups[0].sampled)[1].logprobs).all()
