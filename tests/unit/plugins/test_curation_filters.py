"""Filters: groups without a difference, and groups with too many truncated samples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
import rlax_curation as curation
from sections import section_with

from rlax_plugin.api import BuildContext
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import ScoredGroup
from rlax_plugin.testing import make_episode, make_group, make_sampled

Finish = Literal["stop", "length"]


def sampled_as(samples: Sequence[Sequence[int]], finish: Finish = "length") -> ScoredGroup:
    """A group whose samples have these tokens; their rewards differ."""
    group = make_group([float(i % 2) for i in range(len(samples))])
    episodes = tuple(
        make_episode(make_sampled(tokens=list(tokens), finish=finish), index=i, prompt=group.prompt)
        for i, tokens in enumerate(samples)
    )
    return replace(group, episodes=episodes)


def test_mixed_outcome_accepts_only_groups_with_a_difference():
    filter = curation.MixedOutcome()
    assert filter.reject(make_group((0.0, 1.0))) is None
    assert filter.reject(make_group((1.0, 1.0))) == "all rewards equal"
    assert filter.reject(make_group((1.0, None))) == "all rewards equal"


def test_difficulty_band_names_the_side_and_rejects_an_empty_band():
    filter = curation.DifficultyBand(curation.BandConfig(low=0.2, high=0.8), pass_threshold=0.5)
    assert filter.reject(make_group((1.0, 0.0, 0.0, 0.0))) is None  # .25
    assert filter.reject(make_group((0.0, 0.0))) == "too hard"
    assert filter.reject(make_group((1.0, 1.0))) == "too easy"
    with pytest.raises(ConfigError, match=r"low = 0\.9.*high = 0\.1"):
        curation.BandConfig(low=0.9, high=0.1)


@pytest.mark.parametrize(
    ("cut", "of", "most", "accepted"),
    [(2, 4, 0.5, True), (3, 4, 0.5, False), (1, 4, 0.0, False), (0, 4, 0.0, True), (4, 4, 1, True)],
)
def test_a_group_of_too_many_truncated_samples_is_rejected(cut, of, most, accepted):
    group = sampled_as([[5]] * of, "stop")
    rest = sampled_as([[5]] * of, "length")
    group = replace(group, episodes=rest.episodes[:cut] + group.episodes[cut:])
    reason = curation.Truncated(curation.TruncatedConfig(most=most)).reject(group)
    assert reason == (None if accepted else "too many truncated")


def test_an_episode_that_was_cut_at_a_limit_counts_as_truncated():
    group = sampled_as([[5], [5]], "stop")
    cut = replace(group, episodes=tuple(replace(e, ended="cut") for e in group.episodes))
    assert curation.Truncated(curation.TruncatedConfig()).reject(cut) == "too many truncated"


def test_the_band_counts_samples_of_the_policy_and_accepts_guided_groups_only_from_0():
    band = curation.rlax_register_filter()["difficulty_band"]
    context = BuildContext.outside_run(
        section_with(
            objective={"guidance": {}}, curation={"filters": [{"name": "difficulty_band"}]}
        )
    )
    assert band.check_start is not None
    with pytest.raises(ConfigError, match=r"filters\.0\.low = 0\.2: must be 0 with"):
        band.check_start(curation.BandConfig(), context)
    easy = curation.BandConfig(low=0, high=0.4)
    band.check_start(easy, context)
    group = make_group((0.0, 1.0))
    shown = replace(group.episodes[1], demonstration=True)
    guided = replace(group, episodes=(group.episodes[0], shown))
    assert band.build(easy, context).reject(guided) is None
