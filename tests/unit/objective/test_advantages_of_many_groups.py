"""Advantages of a batch look at each group once, however many groups there are."""

from __future__ import annotations

import numpy as np
import pytest
from counted_work import counted

from rlax_plugin.objective.advantages import Outcomes, of_groups, per_group
from rlax_plugin.testing.builders import make_group


def test_members_of_a_group_need_not_be_neighbours() -> None:
    outcomes = Outcomes(np.zeros(6), np.ones(6, int), np.array([7, 2, 7, 0, 2, 7]))
    assert [members.tolist() for members in outcomes.members] == [[3], [1, 4], [0, 2, 5]]
    assert Outcomes(np.zeros(0), np.zeros(0, int), np.zeros(0, int)).members == []


class Compared(np.ndarray):
    """Group numbers that count the elements that are compared with a number."""

    elements = 0

    def __eq__(self, other: object) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        Compared.elements += self.size
        return np.asarray(self) == other


def test_no_group_is_looked_for_among_all_samples() -> None:
    Compared.elements = 0
    group_n = np.repeat(np.arange(50), 4).view(Compared)
    rewards_n = np.arange(200) % 4 * 1.0
    slot = per_group(lambda rewards_g, lengths_g: rewards_g - rewards_g.mean())
    found_n = slot(Outcomes(rewards_n, np.ones(200, int), group_n))
    np.testing.assert_array_equal(found_n, np.tile([-1.5, -0.5, 0.5, 1.5], 50))
    assert Compared.elements == 0


@pytest.mark.parametrize("groups", [8, 64])
def test_calls_for_a_group_of_many(groups: int) -> None:
    made = [make_group([0.0, 1.0, 0.0, 1.0], id=number) for number in range(groups)]
    slot = per_group(lambda rewards_g, lengths_g: rewards_g - rewards_g.mean())
    with counted() as work:
        found = of_groups(slot, made)
    assert [one.tolist() for one in found] == [[-0.5, 0.5, -0.5, 0.5]] * groups
    assert work.calls < 100 + 80 * groups and work.jumps < 50 + 80 * groups


def test_samples_of_one_turn_have_no_array_of_turns() -> None:
    seen: list[Outcomes] = []

    def slot(outcomes: Outcomes) -> np.ndarray:
        seen.append(outcomes)
        return outcomes.rewards_n

    of_groups(slot, [make_group([0.0, 1.0])])
    assert seen[0].turns_nt is None
