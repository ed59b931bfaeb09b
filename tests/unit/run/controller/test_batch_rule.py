"""Which groups make a batch: by number, by tokens, and by what fits."""

import dataclasses
from random import Random

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scored_groups import scored_group

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import Episode, ScoredGroup, Trajectory, Turn
from rlax_plugin.run.controller.batch_rule import BatchRule
from rlax_plugin.run.state.ready_groups import ReadyGroups
from rlax_plugin.training.objective.batches import sizes
from rlax_plugin.training.objective.placing import place


def group(number: int, *lengths: int) -> ScoredGroup:
    """Samples of so many tokens behind a prompt of one, so that as many positions."""
    return scored_group(number, *((length, None) for length in lengths), prompt_tokens=1)


def groups(*lengths: tuple[int, ...]) -> list[ScoredGroup]:
    return [group(number, *of_group) for number, of_group in enumerate(lengths)]


def of_version(version: int, number: int, *lengths: int) -> ScoredGroup:
    """A group whose first token is of a version, the others of the next one."""
    made = group(number, *lengths)
    episodes = []
    for episode in made.episodes:
        ((turn,),) = (one.turns for one in episode.trajectories)
        versions = turn.sampled.versions + (version + 1)
        versions[0] = version
        turn = Turn(turn.given, dataclasses.replace(turn.sampled, versions=versions))
        episodes.append(Episode(episode.index, (Trajectory((turn,)),)))
    return dataclasses.replace(made, episodes=tuple(episodes))


def chosen(
    rule: BatchRule, ready: list[ScoredGroup] | ReadyGroups, before: int | None = None
) -> list[int] | None:
    """The groups of the next batch, all of which are accepted and older than ``before``."""
    held = ReadyGroups(ready) if isinstance(ready, list) else ready
    due = rule.due(held, before)
    assert before is not None or (due is not None) == rule.completes(held)
    return None if due is None else list(due.groups[: rule.fitting(due)])


def worth(rule: BatchRule, ready: list[ScoredGroup]) -> int:
    return rule.worth(ReadyGroups(ready))


def shortfall(rule: BatchRule, ready: list[ScoredGroup]) -> str:
    return rule.shortfall(ReadyGroups(ready))


def test_a_number_of_groups_is_taken_from_the_oldest() -> None:
    rule = BatchRule(groups=2, tokens=0, rows=4, length=9, sequences_per_row=1)
    ready = groups((1, 2), (9, 9), (3, 3))
    assert [chosen(rule, ready[:n]) for n in range(4)] == [None, None, [0, 1], [0, 1]]
    assert [worth(rule, ready[:n]) for n in range(4)] == [0, 1, 2, 3]
    assert shortfall(rule, ready[:1]) == "1 of 2"


def test_tokens_are_reached_by_the_last_group() -> None:
    rule = BatchRule(groups=4, tokens=20, rows=100, length=9, sequences_per_row=1)
    ready = groups((5, 5), (4, 5), (1, 1), (9, 9))  # 10, 19, 21, 39
    assert [chosen(rule, ready[:n]) for n in (1, 2, 3, 4)] == [None, None, [0, 1, 2], [0, 1, 2]]
    # 4 groups to 20 tokens: 5 tokens stand for one; 18 are left over after the batch.
    assert [worth(rule, ready[:n]) for n in (1, 2, 3, 4)] == [2, 3, 4, 4 + 3]
    assert shortfall(rule, ready[:2]) == "19 of 20 tokens"
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
    assert rule.completes(ReadyGroups(ready[:1]))
    with pytest.raises(TrainingError, match=r"group 0 .*\[9, 8, 7\].*2 rows of 10"):
        chosen(rule, ready)


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

    found = chosen(rule, ready)
    if found is None:
        assert not due(ready) and worth(rule, ready) < rule.groups  # there is room for more
        return
    count = len(found)
    assert found == [one.id for one in ready[:count]] and count >= 1 and fits(ready[:count])
    assert not due(ready[: count - 1])
    assert due(ready[:count]) or not fits(ready[: count + 1])
    assert worth(rule, ready) >= rule.groups
    # Whoever looks later, when more is ready, finds the same batch.
    assert chosen(rule, [*ready, group(99, 1, 1)]) == found


def first_fit(
    lengths: list[int], rows: int, length: int, sequences_per_row: int
) -> list[tuple[int, int, int]] | None:
    """What ``place`` must return, by trying every row for every sample."""
    order = list(range(len(lengths)))
    if sequences_per_row > 1:
        order.sort(key=lambda sample: -lengths[sample])
    used, held, places = [0] * rows, [0] * rows, {}
    for sample in order:
        fits = [
            row
            for row in range(rows)
            if used[row] + lengths[sample] <= length and held[row] < sequences_per_row
        ]
        if not fits:
            return None
        row = fits[0]
        held[row] += 1
        places[sample] = (row, used[row], held[row])
        used[row] += lengths[sample]
    return [places[sample] for sample in range(len(lengths))]


@pytest.mark.property
@settings(max_examples=examples(100))
@given(
    st.lists(st.integers(1, 12), max_size=40),
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_samples_lie_where_trying_every_row_places_them(
    lengths: list[int], rows: int, length: int, sequences_per_row: int
) -> None:
    layout = rows, length, sequences_per_row
    assert place(lengths, *layout) == first_fit(lengths, *layout)


@pytest.mark.property
@settings(max_examples=examples(100))
@given(RULES, st.randoms(use_true_random=False), st.integers(0, 200))
def test_groups_that_come_and_go_count_as_if_the_others_had_never_been(
    rule: BatchRule, random: Random, number: int
) -> None:
    held, there = ReadyGroups(), dict[int, ScoredGroup]()
    waiting: list[int] = []  # issued and not scored yet
    for _ in range(60):
        what = random.random()
        if what < 0.4 or not waiting:
            number += 1
            waiting.append(number)
        elif what < 0.8:
            scored = waiting.pop(random.randrange(len(waiting)))
            version = random.randrange(4)
            there[scored] = of_version(version, scored, random.randint(1, 9), random.randint(1, 9))
            held.add(there[scored])
        elif there:
            gone = random.choice(sorted(there))
            held.remove(gone)
            del there[gone]
        ready = [there[group_id] for group_id in sorted(there)]
        assert held.in_order() == ready and list(held) == list(there)
        assert rule.worth(held) == worth(rule, ready)
        for version in range(5):
            older = [group.id for group in ready if group.oldest_version < version]
            assert held.older_than(version) == older
        oldest = min(waiting, default=None)
        usable = [group for group in ready if oldest is None or group.id < oldest]
        assert chosen(rule, held, oldest) == chosen(rule, usable)
