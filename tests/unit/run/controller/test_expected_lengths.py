"""The expected length of a prompt's samples, by numbers."""

import pytest
from sections import section_with

from rlax_plugin.run.controller.trips import ExpectedLengths


def lengths(**rlax) -> ExpectedLengths:
    return ExpectedLengths(section_with(**rlax), 3)


def test_a_prompt_is_expected_to_be_as_long_as_its_groups_were() -> None:
    known = lengths()
    assert known.expected(0) == 0.0
    known.observe(0, [4, 8])
    assert known.expected(0) == 6.0
    assert known.expected(1) == 6.0  # nothing is known of it but the mean of all
    known.observe(1, [10, 20, 30])
    assert [known.expected(i) for i in range(3)] == [6.0, 20.0, 13.0]
    known.observe(0, [26])  # as much as all before: (6 + 26) / 2
    assert [known.expected(i) for i in range(3)] == [16.0, 20.0, 18.0]


@pytest.mark.parametrize("rlax", [{"rollouts": {"order": "issued"}}, {"deterministic": True}])
def test_nothing_is_expected_where_groups_are_sent_as_they_were_issued(rlax) -> None:
    known = lengths(**rlax)
    known.observe(0, [4, 8])
    assert [known.expected(i) for i in range(3)] == [0.0, 0.0, 0.0]
