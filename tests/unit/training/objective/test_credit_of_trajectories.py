"""What the trajectories of sub-agents and of compacted histories get of an episode's rewards."""

import numpy as np
import pytest
from rlax_objectives.advantages import BatchNormalised, GroupNormalised

from rlax_plugin.base.types import Episode, Score, ScoredGroup, Trajectory, Turn
from rlax_plugin.testing import make_prompt, make_sampled
from rlax_plugin.training.objective.advantages import of_groups

PROMPT = make_prompt(tokens=np.array([11], np.int32))


def turn(given: list[int], *tokens: int) -> Turn:
    return Turn(np.array(given, np.int32), make_sampled(tokens=tokens))


def group() -> ScoredGroup:
    """In time: 31, then 41 of a sub-agent, then 32 with its result, then 51 behind a summary."""
    main = Trajectory((turn([11], 31), turn([61], 32)))
    agent, compacted = Trajectory((turn([12], 41),)), Trajectory((turn([13], 51),))
    played = Episode(0, (main, agent, compacted), ended="done", order=(0, 2, 1, 3))
    other = Episode(1, (Trajectory((turn([11], 33),)),), ended="done")
    # The sub-agent's turn costs 1, and the last one is worth 2; the whole is worth 4 more.
    rewards = tuple(np.array([one]) for one in (0.0, 0.0, -1.0, 2.0))
    scores = (Score(5.0, token_rewards=rewards), Score(1.0))
    return ScoredGroup(1, 1, PROMPT, (played, other), scores)


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        # The episodes are worth 5 and 1: 2 above and 2 below their mean, in every trajectory.
        (GroupNormalised(scale_by_std=False), [2.0, 2.0, 2.0, 2.0, -2.0]),
        # 4, and the rewards of this and of later turns of all trajectories: -1 + 2, or 2.
        (BatchNormalised(whiten_over="none"), [5.0, 6.0, 5.0, 6.0, 1.0]),
        (BatchNormalised(whiten_over="none", credit="own"), [4.0, 4.0, 3.0, 6.0, 1.0]),
    ],
)
def test_each_trajectory_is_credited_as_a_part_of_its_episode(slot, expected):
    (found,) = of_groups(slot, [group()])
    if found.ndim == 1:  # one for all tokens of a sample
        assert found.tolist() == [expected[0], expected[-1]]
    else:
        assert [*found[0].tolist(), found[1, 0]] == expected
