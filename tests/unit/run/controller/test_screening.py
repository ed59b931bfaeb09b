"""Which groups end after their first samples, and how that weighs prompts."""

import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from documents import read
from flow_harness import Harness, MixedOnly, settle
from sections import section_with

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Prompt, Score, Unscored
from rlax_plugin.config import RlaxSection
from rlax_plugin.reward.messages import Needs
from rlax_plugin.run.controller.screening import Screening, check_rewards
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.run_state import Open
from rlax_plugin.tools.commands.audit import audit

PROMPT = Prompt("p", np.array([1], np.int32), "", "")
GROUP, PILOTS = 8, 4


def screened(pilots: int = PILOTS, least: float = 0.5, **more: object) -> RlaxSection:
    screening = {"pilots": pilots, "min_mixed_probability": least}
    return section_with(rollouts={"group_size": GROUP}, curation={"screening": screening}, **more)


def reason(
    *rewards: float | None, posterior: tuple[float, float] = (1.0, 1.0), least: float = 0.5
) -> str | None:
    scores = [Unscored("it raised") if r is None else Score(r, (r,)) for r in rewards]
    ended = Screening(screened(least=least)).rejects(Open(PROMPT, 0, 0, posterior), scores)
    return ended.reason if ended else None


def test_groups_end_early_that_are_not_likely_to_become_mixed() -> None:
    passed, failed = "screened: all first samples passed", "screened: all first samples failed"
    # Of an unknown prompt: E[p^4] with Beta(5, 1) is 5/9, so that 4/9 become mixed.
    assert reason(1, 1, 1, 1) == passed and reason(0, 0, 0, 0) == failed
    assert reason(1, 1, 1, 1, least=0.44) is None
    assert reason(1, 1, 1, 1, least=0.45) == passed
    assert reason(1, 1, 0, 1) is None
    # Measured before: it passes half of the time, whatever four samples say.
    assert reason(1, 1, 1, 1, posterior=(17.0, 17.0)) is None
    assert reason(0, 0, 0, 0, posterior=(17.0, 17.0)) is None
    assert reason(0, 0, 0, 0, posterior=(17.0, 17.0), least=1.0) == failed
    # Rewards that differ have a gradient, even if all of them fail.
    assert reason(0.1, 0.2, 0.1, 0.1) is None
    # What could not be scored says nothing: Beta(2, 1), 4 more: E[p^4] = 2/6.
    assert reason(None, 1, None, None) is None and reason(None, 1, None, None, least=0.67) == passed
    assert reason(None, None, None, None) == "all rewards failed"
    assert reason(*[1] * GROUP) is None  # it is whole


def test_groups_cannot_be_screened_whose_samples_need_each_other() -> None:
    check_rewards(screened(), Needs())
    with pytest.raises(ConfigError, match=r"must be 0: a reward of rlax\.rewards scores"):
        check_rewards(screened(), Needs(group=True))
    check_rewards(screened(pilots=0), Needs(group=True))


def weight_and_samples(rate: float, posterior: tuple[float, float]) -> tuple[float, float]:
    """Of a prompt, by all outcomes of a group: see docs/curation.md.

    A sample's log-prob gradient is on average g / rate if it passes and -g / (1 - rate) if it
    fails, where g is the gradient of the rate. So the gradient of a group is a multiple of g.

    Returns:
      How much of that multiple screening leaves, and the samples that it generates.
    """
    rule, group = Screening(screened()), Open(PROMPT, 0, 0, posterior)
    kept = whole = samples = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=GROUP):
        rewards = np.array(outcome)
        probability = np.prod(np.where(rewards == 1, rate, 1 - rate))
        gradient = np.where(rewards == 1, 1 / rate, -1 / (1 - rate))
        part = probability * ((rewards - rewards.mean()) * gradient).sum()
        ends = rule.rejects(group, [Score(r) for r in outcome[:PILOTS]]) is not None
        kept, whole = kept + part * (not ends), whole + part
        samples += probability * (PILOTS if ends else GROUP)
    assert whole == pytest.approx(GROUP - 1)  # what a group of independent samples has
    return kept / whole, samples


def test_screening_weighs_prompts_as_the_page_says() -> None:
    rows = re.findall(r"^\| (0\.\d+) \| ([\d.]+) \| ([\d.]+) \|$", read("curation.md"), re.M)
    assert [float(rate) for rate, *_ in rows] == [0.02, 0.05, 0.1, 0.2, 0.3, 0.5]
    for rate, weight, samples in rows:
        found = weight_and_samples(float(rate), (1.0, 1.0))
        assert found == pytest.approx((float(weight), float(samples)), abs=0.006)
        mirrored = weight_and_samples(1 - float(rate), (1.0, 1.0))
        assert mirrored == pytest.approx(found)
    # A prompt that is known to be mixed loses nothing.
    assert weight_and_samples(0.3, (13.0, 29.0)) == pytest.approx((1.0, GROUP))


async def test_the_first_samples_stay_in_the_group(tmp_path: Path) -> None:
    screening = {"pilots": 1, "min_mixed_probability": 0.3}
    run = Harness(tmp_path, groups=1, filters=[MixedOnly()], refill=1000, screening=screening)
    flow, answers = run.flow, run.answers
    await run.begin()
    first, _ = answers.open[0]
    await answers.answer(0, 0, (1.0, 0.0), length=3)  # 1/3 fails next
    rest, _ = answers.open[0]
    assert [len(r.seeds) for r in (first, rest)] == [1, 1] and first.seeds != rest.seeds
    run.lose_worker(0)
    await answers.answer(0, 0, (1.0, 0.0), length=2)
    batch, _ = await flow.batch(1)
    (group,) = batch.groups
    assert [e.index for e in group.episodes] == [0, 1] and group.attempt == 2
    assert [len(s.tokens) for s in group.sampled] == [3, 2]
    assert [s.seed for s in group.sampled] == [*first.seeds, *rest.seeds]
    assert batch.advantages[0].tolist() == [0.5, -0.5]
    assert run.run_state.totals.samples == 2 and run.run_state.totals.tokens == 5

    await run.published(1)
    for _ in range(40):  # of ten prompts, which always pass
        (number,) = answers.open
        await answers.answer(number, 1, (1.0, 1.0), length=1)
    await flow.commit()
    events = [e for segment, _ in journal.read(run.files) for e in segment.events]
    ended = [e for e in events if isinstance(e, ev.Scored) and e.rejected]
    sizes = {"screened: all first samples passed": 1, "all rewards equal": 2}
    assert {e.rejected for e in ended} == sizes.keys()
    assert all(e.passed == e.scored == sizes[e.rejected or ""] for e in ended)
    counts = run.run_state.totals.rejected
    assert counts == Counter(e.rejected for e in ended)
    assert run.run_state.totals.samples == 2 + sum(sizes[why] * n for why, n in counts.items())
    # Each prompt has at most a few whole groups: 1/(3 + passed) becomes mixed.
    assert counts["all rewards equal"] <= 10
    assert audit(run.files).violation is None


async def with_a_whole_group(directory: Path) -> Harness:
    """A run with groups 0 and 1 for a batch of one, of which 0 is generated in both phases."""
    screening = {"pilots": 1, "min_mixed_probability": 0.3}
    run = Harness(directory, groups=1, oversample=2.0, screening=screening)
    await run.begin()
    await run.answers.answer(0, 0, (1.0, 0.0))
    await run.answers.answer(0, 0, (1.0, 0.0))
    return run


@pytest.mark.parametrize("when", ["not asked for", "asked for", "begun with older weights"])
async def test_first_samples_that_are_no_longer_needed_count(tmp_path: Path, when: str) -> None:
    """When the batch is full, the other samples are not asked for yet, or are, or are begun."""
    begun = when == "begun with older weights"
    run = await with_a_whole_group(tmp_path)
    flow, answers = run.flow, run.answers
    if when != "not asked for":
        await answers.answer(1, 0, (1.0, 0.0))
    if begun:  # as a worker does that has older weights than the one of the first samples
        answers.begin(1, 0)
        answers.give_up(1, tokens=(1,))
    batch, _ = await flow.batch(1)
    assert [g.id for g in batch.groups] == [0] and answers.oldest == 1
    await settle()
    if when == "not asked for":
        answers.generate(1, 0, (1.0, 0.0))
    await settle()
    assert 1 not in answers.open and 1 not in run.run_state.open
    await flow.commit()
    events = [e for segment, _ in journal.read(run.files) for e in segment.events]
    (ended,) = (e for e in events if isinstance(e, ev.Scored) and e.rejected)
    tokens = 1 if begun else 2  # of the two that other samples had
    assert ended == ev.Scored(1, 1, 1, "not_needed", samples_saved=1, tokens_saved=tokens)
    totals = run.run_state.totals
    assert totals.rejected == {"not_needed": 1} and totals.samples == 3
    assert (totals.samples_saved, totals.tokens_saved) == (1, tokens)
    # Its first sample passed, but the other might have failed.
    assert run.run_state.rates.outcomes == (0, 0, 1)
    assert run.run_state.rates.measured().sum() == 2
    assert audit(run.files).violation is None


async def test_attempts_of_the_other_samples_count(tmp_path: Path) -> None:
    """First samples that are void are generated anew, after the others were issued twice."""
    run = await with_a_whole_group(tmp_path)
    flow, answers = run.flow, run.answers
    answers.generate(1, 0, (1.0, 0.0), worker="wrong")
    await settle()
    run.lose_worker(1)
    run.quarantine("wrong")
    batch, _ = await flow.batch(1)
    assert [g.id for g in batch.groups] == [0] and answers.oldest == 1
    await settle()
    assert answers.open[1][0].attempt == 3
    run.publish(1)
    await answers.answer(1, 1, (1.0, 0.0))
    await answers.answer(1, 1, (1.0, 0.0))
    batch, _ = await flow.batch(2)
    assert [(g.id, g.attempt) for g in batch.groups] == [(1, 3)]
    await flow.commit()
    assert audit(run.files).violation is None
