"""Which tokens of a context a free slot keeps, without a model."""

import numpy as np

from maxtext_overrides.sampler.kept_contexts import Ended, KeptContexts, Match


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def ended(
    kept: KeptContexts, slot: int, prompt: np.ndarray, new: np.ndarray, since: int = 0, steps=4
) -> list[Ended]:
    """Fills a slot, reads what it has generated, and frees it."""
    kept.inserted([slot], prompt, since)
    kept.read(slot, new)
    return kept.released([slot], steps)


def test_all_but_the_last_token_is_kept():
    kept = KeptContexts(longest=10, ring=8)
    moved = ended(kept, 3, tokens(1, 2), tokens(5, 6, 7), steps=4)
    assert moved == [Ended(3, prompt=2, new=2, age=4)]
    assert kept.released([3], 4) == []
    assert kept.find(tokens(1, 2, 5, 6, 7, 9)) == Match(3, 4)
    assert kept.find(tokens(1, 2, 5, 6, 8)) == Match(3, 4)
    assert kept.find(tokens(1, 2, 5, 9, 9)) == Match(3, 3)  # a stop string has cut the rest
    assert kept.find(tokens(1, 2)) == Match(3, 1)  # one is left to sample behind
    assert kept.find(tokens(1, 3, 5, 6)) is None
    assert kept.find(tokens(1)) is None


def test_the_longest_of_several_is_found():
    kept = KeptContexts(longest=10, ring=8)
    for slot, new in enumerate([tokens(5, 6, 7), tokens(5, 6, 6), tokens(8, 8, 8)]):
        ended(kept, slot, tokens(1, 2), new)
    ended(kept, 3, tokens(1), tokens(2, 5, 6, 6, 4))
    assert kept.find(tokens(1, 2, 5, 6, 6, 4, 4)) == Match(3, 5)
    assert kept.find(tokens(1, 2, 8, 8, 8)) == Match(2, 4)


def test_what_the_ring_has_overwritten_or_the_cache_cannot_hold_is_not_kept():
    kept = KeptContexts(longest=6, ring=4)
    assert ended(kept, 0, tokens(1, 2), tokens(5, 6, 7), since=10, steps=15) == []
    assert kept.find(tokens(1, 2, 5, 6, 7)) is None
    moved = ended(kept, 0, tokens(1, 2), tokens(5, 6, 7), since=10, steps=14)
    assert moved == [Ended(0, 2, 2, 4)]
    assert ended(kept, 1, tokens(4, 4, 4, 4, 4), tokens(6, 7, 8), steps=3) == []
    assert kept.find(tokens(4, 4, 4, 4, 4, 6)) is None


def test_a_slot_that_is_filled_again_keeps_nothing_of_before():
    kept = KeptContexts(longest=10, ring=8)
    ended(kept, 0, tokens(1, 2), tokens(5, 6))
    kept.inserted([0], tokens(7, 8), 2)
    assert kept.find(tokens(1, 2, 5)) is None
    assert kept.released([0], 3) == []  # before anything was read
    assert kept.find(tokens(7, 8, 9)) is None
    ended(kept, 0, tokens(7, 8), tokens(5))
    assert kept.find(tokens(7, 8, 9)) == Match(0, 2)
    kept.forget()
    assert kept.find(tokens(7, 8, 9)) is None


def test_a_context_goes_on_where_it_has_most_of_what_was_generated():
    kept = KeptContexts(longest=20, ring=8)
    ended(kept, 0, tokens(1, 2), tokens(5, 6, 7, 8, 9), steps=4)
    found = kept.find(tokens(1, 2, 5, 6, 7, 8, 9, 3))
    assert found == Match(0, 6) and kept.goes_on(found)
    found = kept.find(tokens(1, 2, 5, 6, 3))
    assert found == Match(0, 4) and kept.goes_on(found)  # a stop string has cut the rest
    found = kept.find(tokens(1, 2, 5, 3))  # a sample of the same group
    assert found == Match(0, 3) and not kept.goes_on(found)
    assert kept.find(tokens(1, 2, 5, 3), taken=[0]) is None


def test_slots_that_keep_nothing_are_filled_first_and_then_the_oldest():
    kept = KeptContexts(longest=10, ring=8)
    for slot in (2, 0, 3):
        ended(kept, slot, tokens(slot), tokens(5, 6))
    assert kept.order([0, 1, 2, 3, 4]) == [1, 4, 2, 0, 3]
