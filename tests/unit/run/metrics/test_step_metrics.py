"""What a step's metrics say of its groups."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sections import section_with

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import Rejected, Score, ScoredGroup, Trajectory, Turn, Unscored
from rlax_plugin.run.metrics.step import FinishedStep, StepStats, step_metrics
from rlax_plugin.run.state import events as ev
from rlax_plugin.testing import make_batch, make_episode, make_group, make_prompt, make_sampled


def metrics(
    *scored: ScoredGroup, rewards: tuple[str | dict[str, str], ...] = ("right",), **settings: Any
) -> dict[str, float]:
    section = section_with(
        rewards=[{"name": one} if isinstance(one, str) else one for one in rewards], **settings
    )
    done = FinishedStep(
        make_batch(2, [make_group(version=1)]), stats=StepStats(scored=list(scored)), metrics={}
    )
    return step_metrics(done, section, workers=1, replaced=2)


def with_parts(*parts: tuple[float, ...] | None) -> ScoredGroup:
    group = make_group([None if one is None else sum(one) for one in parts])
    scores = (Unscored("it raised") if one is None else Score(sum(one), one) for one in parts)
    return replace(group, scores=tuple(scores))


def test_figures_of_samples_are_there_where_samples_are():
    found = metrics(make_group([1.0, None, 0.5], lengths=(2, 4, 6)))
    assert found["reward/mean"] == 0.75 and found["reward/errors"] == 1
    assert found["length/issued_mean"] == 4 and found["reward/processes_replaced"] == 2
    # A step whose groups were all scored before has none: 0 would be a lie.
    nothing = metrics()
    assert not {"reward/mean", "length/issued_mean"} & nothing.keys()
    assert nothing["curation/groups_scored"] == 0 and nothing["staleness/max"] == 1
    # Every reward failed.
    assert "reward/mean" not in metrics(make_group([None, None]))


def test_each_of_several_rewards_has_its_mean():
    groups = with_parts((1.0, -0.5), (0.0, 0.25)), with_parts((0.5, 0.25), None)
    found = metrics(*groups, rewards=("right", "brief"))
    assert found["reward_part/right"] == 0.5
    assert found["reward_part/brief"] == 0.0
    assert found["reward/mean"] == pytest.approx((0.5 + 0.25 + 0.75) / 3)
    # Of one of several environments, whatever name a reward has.
    prompt = make_prompt(id="a/0")
    own = [replace(group, prompt=prompt) for group in groups]
    several = {"a": {"prompt_source": {"name": "x"}}, "b": {"prompt_source": {"name": "x"}}}
    found = metrics(*own, rewards=("mean", "brief"), environments=several)
    assert found["environment_a/reward_mean"] == pytest.approx((0.5 + 0.25 + 0.75) / 3)
    assert found["environment_a/reward_part_mean"] == 0.5
    twice = metrics(*groups, rewards=("right", "right"))
    assert twice["reward_part/right_0"] == 0.5 and twice["reward_part/right_1"] == 0.0
    labelled = metrics(*groups, rewards=("right", {"name": "right", "label": "again"}))
    assert labelled["reward_part/right"] == 0.5 and labelled["reward_part/again"] == 0.0
    assert not any(name.startswith("reward_part/") for name in metrics(with_parts((1.0,))))


def test_weights_that_workers_receive_are_added_up_and_the_slowest_counts():
    done = FinishedStep(make_batch(2), StepStats(), {})
    reads = {"read_s": 1.0, "read_bytes": 8.0}
    streams = [{"stream_s": 2.0, "stream_bytes": 100.0}, {"stream_s": 3.0, "stream_bytes": 50.0}]
    section = section_with()
    found = step_metrics(done, section, workers=3, replaced=0, figures=[reads, *streams])
    assert found["rollout/stream_bytes"] == 150 and found["rollout/stream_s"] == 3
    read = step_metrics(done, section, workers=1, replaced=0, figures=[reads])
    assert not any("stream" in name for name in read)


def test_rejected_groups_are_counted_and_their_samples_with_the_others():
    section = section_with()
    scored = [
        Rejected(make_group([0.0, 0.0], lengths=(2, 4)), "too hard"),
        make_group([1.0, 0.0], lengths=(6, 8)),
        Rejected(make_group([0.0, 0.0], lengths=(2, 2)), "too hard"),
    ]
    done = FinishedStep(make_batch(2), StepStats(scored=scored), {})
    found = step_metrics(done, section, workers=1, replaced=0)
    assert found["curation/groups_scored"] == 3 and found["batch/groups"] == 2
    assert found["reward/mean"] == 1 / 6 and found["length/issued_mean"] == 4
    assert found["curation/groups_rejected"] == 2


def test_turns_and_given_tokens_are_counted_where_there_may_be_several():
    def turn(given: int) -> Turn:
        return Turn(np.full(given, 9, np.int32), make_sampled(2))

    alone = make_episode(make_sampled())
    further = make_episode(turn(5), turn(1), turn(2), ended="cut")
    # Of a second trajectory all is counted that its environment gave.
    summary = replace(further, trajectories=(*further.trajectories, Trajectory((turn(3),))))
    group = replace(make_group([1.0, 0.0]), episodes=(alone, summary))
    found = metrics(group, environment={"name": "calculator"})
    assert found["episode/turns_mean"] == (1 + 4) / 2
    assert found["episode/given_tokens"] == 1 + 2 + 3
    assert not any(name.startswith("episode/") for name in metrics(group))
    nothing = metrics(environment={"name": "calculator"})
    assert nothing["episode/given_tokens"] == 0 and "episode/turns_mean" not in nothing


def test_figures_that_rewards_report_have_their_means_and_only_the_commonest_are_shown():
    group = make_group([1.0, 0.0, None])
    scores = (
        Score(1.0, (1.0,), {"turns": 2.0, "cut": 1.0}),
        Score(0.0, (0.0,), {"turns": 4.0} | {f"odd{i:02}": 1.0 for i in range(31)}),
        Unscored("it raised"),
    )
    found = metrics(replace(group, scores=scores))
    assert found["reward_metric/turns"] == 3.0 and found["reward_metric/cut"] == 1.0
    shown = [name for name in found if name.startswith("reward_metric/")]
    assert len(shown) == 32 and "reward_metric/odd30" not in found


def test_each_ending_of_a_sample_or_a_request_is_counted():
    stats = StepStats()
    stats.count(ev.Reissued(3, 2, "worker w0 was lost", Ending.WORKER_LOST))
    stats.count(ev.Reissued(4, 2, "its worker was quarantined", Ending.QUARANTINED))
    stats.count(ev.Dropped(5, Ending.TOO_STALE))
    stats.count(ev.Dropped(6, Ending.NOT_NEEDED))
    stats.count(ev.Scored(7, 1, 1, Ending.NOT_NEEDED, samples_saved=1, tokens_saved=9))
    stats.count(ev.Scored(8, 2, 2, "all rewards equal"))
    group = make_group([1.0, 0.0, None, None, None])
    scores = (
        Score(1.0),
        Score(0.0, ending=Ending.OVER_MEMORY),
        *group.scores[2:4],
        Unscored("refused", Ending.SERVER_FAILED),
    )
    episodes = (replace(group.episodes[0], ended=Ending.CUT), *group.episodes[1:])
    stats.scored.append(replace(group, episodes=episodes, scores=scores))
    done = FinishedStep(make_batch(2), stats, {})
    found = step_metrics(done, section_with(), workers=1, replaced=0)
    ends = {name: value for name, value in found.items() if name.startswith("episode_ended/")}
    assert ends == {
        "episode_ended/cut": 1.0,
        "episode_ended/over_memory": 1.0,
        "episode_ended/reward_failed": 2.0,
        "episode_ended/server_failed": 1.0,
        "episode_ended/worker_lost": 1.0,
        "episode_ended/quarantined": 1.0,
        "episode_ended/too_stale": 1.0,
        "episode_ended/not_needed": 2.0,
    }
    assert found["reward/errors"] == 3.0
