"""Which groups make a batch: by number, by tokens, and by what fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_groups import scored_group

from rlax_plugin.controller.batch_rule import BatchRule
from rlax_plugin.errors import TrainingError
from rlax_plugin.objective.batches import place, sizes
from rlax_plugin.types import ScoredGroup


def group(number: int, *lengths: int) -> ScoredGroup:
    """Samples of so many tokens behind a prompt of one, so that as many positions."""
    return scored_group(number, *((length, None) for length in lengths), prompt_tokens=1)


def groups(*lengths: tuple[int, ...]) -> list[ScoredGroup]:
    return [group(number, *of_group) for number, of_group in enumerate(lengths)]


def chosen(rule: BatchRule, ready: list[ScoredGroup]) -> list[int] | None:
    found = rule.choose(ready)
    assert (found is not None) == rule.completes(ready)
    return None if found is None else [g.id for g in found]


def test_a_number_of_groups_is_taken_from_the_oldest() -> None:
    rule = BatchRule(groups=2, tokens=0, rows=4, length=9, sequences_per_row=1)
    ready = groups((1, 2), (9, 9), (3, 3))
    assert [chosen(rule, ready[:n]) for n in range(4)] == [None, None, [0, 1], [0, 1]]
    assert [rule.worth(ready[:n]) for n in range(4)] == [0, 1, 2, 3]
    assert rule.shortfall(ready[:1]) == "1 of 2"


def test_tokens_are_reached_by_the_last_group() -> None:
    rule = BatchRule(groups=4, tokens=20, rows=100, length=9, sequences_per_row=1)
    ready = groups((5, 5), (4, 5), (1, 1), (9, 9))  # 10, 19, 21, 39
    assert [chosen(rule, ready[:n]) for n in (1, 2, 3, 4)] == [None, None, [0, 1, 2], [0, 1, 2]]
    # 4 groups to 20 tokens: 5 tokens stand for one; 18 are left over after the batch.
    assert [rule.worth(ready[:n]) for n in (1, 2, 3, 4)] == [2, 3, 4, 4 + 3]
    assert rule.shortfall(ready[:2]) == "19 of 20 tokens"
    exact = groups((5, 5), (5, 5))
    assert chosen(rule, exact) == [0, 1]


def test_what_does_not_fit_ends_the_batch() -> None:
    # Two rows of 10 hold 5 5 | 6 4, and no 5 beside a 6.
    rule = BatchRule(groups=3, tokens=0, rows=2, length=10, sequences_per_row=2)
    ready = groups((5, 5), (6, 4), (1,))
    assert chosen(rule, ready[:2]) is None  # the third may still fit
    assert chosen(rule, ready) == [0, 1]  # five samples for four places
    assert chosen(rule, groups((5, 5), (6,), (5,))) == [0, 1]  # 21 positions of 20
    assert chosen(rule, groups((5, 5), (6,), (3,))) == [0, 1, 2]
    # Enough positions, but 6 + 6 > 10: known once the batch would be complete.
    assert chosen(rule, groups((6, 1), (6,))) is None
    assert chosen(rule, groups((6, 6), (5,), (1,))) == [0]


def test_one_group_that_does_not_fit_is_an_error() -> None:
    rule = BatchRule(groups=2, tokens=0, rows=2, length=10, sequences_per_row=2)
    ready = groups((9, 8, 7), (1,))
    assert rule.completes(ready[:1])
    with pytest.raises(TrainingError, match=r"group 0 .*\[9, 8, 7\].*2 rows of 10"):
        rule.choose(ready)


RULES = st.builds(
    BatchRule,
    groups=st.integers(1, 5),
    tokens=st.sampled_from([0, 0, 7, 20, 40]),
    rows=st.integers(2, 8),
    length=st.just(10),
    sequences_per_row=st.integers(1, 4),
)
READY = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=10)


@pytest.mark.property
@given(RULES, READY)
def test_a_batch_is_the_longest_beginning_that_is_due_and_fits(
    rule: BatchRule, lengths: list[tuple[int, int]]
) -> None:
    ready = groups(*lengths)

    def fits(some: list[ScoredGroup]) -> bool:
        layout = rule.rows, rule.length, rule.sequences_per_row
        return place(sizes(some), *layout) is not None

    def due(some: list[ScoredGroup]) -> bool:
        if rule.tokens:
            return sum(sizes(some)) >= rule.tokens
        return len(some) >= rule.groups

    found = rule.choose(ready)
    if found is None:
        assert not due(ready) and rule.worth(ready) < rule.groups  # there is room for more
        return
    count = len(found)
    assert list(found) == ready[:count] and count >= 1 and fits(ready[:count])
    assert not due(ready[: count - 1])
    assert due(ready[:count]) or not fits(ready[: count + 1])
    assert rule.worth(ready) >= rule.groups
    # Whoever looks later, when more is ready, finds the same batch.
    assert rule.choose([*ready, group(99, 1, 1)]) == found
