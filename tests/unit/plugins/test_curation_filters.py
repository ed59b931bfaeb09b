"""Filters by what was sampled: same completions, truncated ones, degenerate repetition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import rlax_curation as curation

from rlax_plugin.testing import make_episode, make_group, make_sampled
from rlax_plugin.types import ScoredGroup

Finish = Literal["stop", "length"]


def sampled_as(samples: Sequence[Sequence[int]], finish: Finish = "length") -> ScoredGroup:
    """A group whose samples have these tokens; their rewards differ."""
    group = make_group([float(i % 2) for i in range(len(samples))])
    episodes = tuple(
        make_episode(make_sampled(tokens=list(tokens), finish=finish), index=i, prompt=group.prompt)
        for i, tokens in enumerate(samples)
    )
    return replace(group, episodes=episodes)


@pytest.mark.parametrize(
    ("different", "of", "accepted"),
    [
        (1, 2, False),
        (2, 2, True),
        (1, 4, False),
        (2, 4, True),  # 1 of 3 more
        (4, 16, False),  # 3 of 15 more
        (5, 16, True),  # 4 of 15
        (1, 1, True),  # one sample alone repeats nothing
    ],
)
def test_a_group_of_too_few_different_completions_is_rejected(different, of, accepted):
    reason = curation.Distinct(curation.DistinctConfig()).reject(
        sampled_as([[5, 6, i % different] for i in range(of)])
    )
    assert reason == (None if accepted else "too few different completions")


def test_completions_differ_by_tokens_and_by_where_turns_end():
    filter = curation.Distinct(curation.DistinctConfig(minimum=1.0))
    one, two, both = (make_sampled(tokens=tokens) for tokens in ([5], [6], [5, 6]))
    group = make_group((0.0, 1.0))

    def turns(*samples):
        whole = make_episode(samples[0], prompt=group.prompt)
        (trajectory,) = whole.trajectories
        more = [replace(trajectory.turns[0], sampled=one) for one in samples]
        return replace(whole, trajectories=(replace(trajectory, turns=tuple(more)),))

    assert filter.reject(replace(group, episodes=(turns(one, two), turns(both)))) is None
    assert filter.reject(replace(group, episodes=(turns(one, two), turns(one, two)))) is not None
    assert filter.reject(sampled_as([[5, 6], [6, 5], [5]])) is None  # no prefix is the same


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


def repeats(sample: Sequence[int], finish: Finish = "length", **options: int) -> bool:
    filter = curation.Repetition(curation.RepetitionConfig(most=0.0, **options))
    return filter.reject(sampled_as([sample], finish)) is not None


def test_an_end_that_repeats_is_found_from_its_first_tokens_on():
    rng = np.random.default_rng(0)
    start = rng.integers(100, 200, 50).tolist()
    phrase = [1, 2, 1, 3, 4]  # four times are 20 tokens, and 32 are asked for
    assert not repeats(start + phrase * 4)
    assert not repeats(start + (phrase * 7)[4:])  # 31
    assert repeats(start + (phrase * 7)[3:])  # 32
    assert repeats(start + phrase * 4, tokens=20)
    assert not repeats(start + phrase * 40 + [9])  # it has left the repetition
    assert repeats([*start, *phrase * 40, 9], "stop")  # 9 is the stop token
    assert not repeats(start) and not repeats([]) and not repeats([1])
    long = rng.integers(100, 200, 64).tolist()
    assert repeats(start + long * 4) and not repeats(start + long * 3)
    assert not repeats(start + (long * 5)[5:], period=63)  # its period is 64


def test_some_degenerate_samples_are_accepted():
    filter = curation.Repetition(curation.RepetitionConfig())
    sound = np.random.default_rng(1).integers(0, 1000, (4, 100)).tolist()
    assert filter.reject(sampled_as([[7] * 100, *sound[1:]])) is None  # 1 of 4
    assert filter.reject(sampled_as([[7] * 100] * 2 + sound[2:])) == "degenerate repetition"


def test_repetition_looks_at_the_end_of_a_text_only():
    """Hostile: a megabyte that repeats up to its last token, so that every period nearly fits."""

    class Watched(np.ndarray):
        """Counts the elements that are looked at."""

        seen = 0

        def __array_finalize__(self, whole):
            if whole is not None:
                Watched.seen += self.size

    tokens = np.zeros(2**20, np.int32)
    tokens[-1] = 1
    options = curation.RepetitionConfig(period=256, repeats=16, tokens=4096, most=0.0)
    group = sampled_as([[0]], "length")
    (episode,) = group.episodes
    (trajectory,) = episode.trajectories
    (turn,) = trajectory.turns
    turn = replace(turn, sampled=replace(turn.sampled, tokens=tokens.view(Watched)))
    trajectory = replace(trajectory, turns=(turn,))
    group = replace(group, episodes=(replace(episode, trajectories=(trajectory,)),))
    Watched.seen = 0
    assert curation.Repetition(options).reject(group) is None
    # Two parts of at most 4096 tokens for each period, and what they are equal or not.
    assert Watched.seen <= 4 * 256 * 4096
