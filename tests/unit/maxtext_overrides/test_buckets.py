"""Prefill programs: how many there are, and which prompts go through which."""

import functools
import itertools
from typing import Any

import pytest

from maxtext_overrides.sampler.buckets import (
    MOST_LENGTHS,
    Bucket,
    behind,
    calls,
    fitting,
    plan,
    reaches,
)


def test_plans_worked_out_by_hand():
    # make bench: 64 slots, groups of 8, prompts of 16. One token per slot is 64, or 4 rows.
    assert plan(64, 16, 16, 8) == (Bucket(4, 16),)
    # The same where samples go on behind up to 15 tokens of their own: 64 // 31 = 2 rows.
    assert plan(64, 31, 16, 8) == (Bucket(4, 16), Bucket(2, 31))
    assert plan(8, 8, 8, 4) == (Bucket(1, 8),)
    # Four prompts of groups of 16 fill 64 slots: 4 rows, although 8 would be in the budget.
    assert plan(64, 8, 8, 16) == (Bucket(4, 8),)
    # Where rows are divided among 8 devices there are 8 of them, or 16.
    assert plan(64, 31, 16, 8, rows_multiple=8) == (Bucket(8, 16), Bucket(8, 31))
    assert [b.length for b in plan(64, 100, 100, 8)] == [16, 32, 64, 100]
    # 32k new tokens behind prompts of 1024: nothing is padded to more than 2.5 times its length
    # from 64 tokens on.
    lengths = [b.length for b in plan(256, 33791, 1024, 16)]
    assert lengths[-1] == 33791 and 1024 in lengths
    assert max(b / a for a, b in itertools.pairwise(lengths)) <= 2.5


def test_programs_behind_a_kept_context_are_two_and_hold_few_scores():
    # Lengths 16, 48, 96 and 188: none that is nearly a whole prefill. A row holds one sample.
    plans = plan(64, 188, 48, 8)
    assert [b.length for b in plans] == [16, 32, 48, 64, 128, 188]
    assert behind(plans, 64) == (Bucket(4, 16), Bucket(1, 64))
    assert behind(plan(64, 188, 48, 8, 4), 64, rows_multiple=4) == (Bucket(4, 16), Bucket(4, 64))
    # A score for each pair of tokens: 128 x (32768 + 128) fits 2^23, and 512 would not.
    long = behind(plan(8, 32_768, 4096, 8), 8)
    assert all(b.rows * b.length * (32_768 + b.length) <= 2**23 for b in long)
    assert [b.length for b in long] == [128]
    assert behind(plan(8, 20, 20, 8), 8) == ()


@pytest.mark.parametrize("slots", [1, 3, 8, 64, 1024])
def test_at_most_nine_lengths_and_rows_near_one_budget(slots):
    for longest in [1, 2, 7, 16, 17, 31, 100, 1000, 4096, 40_959, 131_072, 1_000_000]:
        for prompt, group, multiple in itertools.product([1, 5, 16, 900], [1, 8, 2000], [1, 4]):
            found = plan(slots, longest, prompt, group, multiple)
            lengths = [b.length for b in found]
            assert len(found) <= MOST_LENGTHS == 9
            assert lengths == sorted(set(lengths)) and lengths[-1] == longest
            assert min(prompt, longest) in lengths
            for b in found:
                assert b.rows >= 1 and b.rows % multiple == 0
                # One token per slot at most, where that is more than the rows that must be.
                assert b.rows == multiple or (b.rows - multiple) * b.length < slots


def test_excess_prompts_go_in_further_calls_of_the_same_programs():
    two = (Bucket(2, 16), Bucket(1, 40))
    assert calls(two, [3, 40, 16, 17, 1]) == [
        (two[0], [0, 2]),
        (two[0], [4]),
        (two[1], [1]),
        (two[1], [3]),
    ]
    assert calls(two, []) == []


def test_a_prompts_program_does_not_depend_on_the_others():
    found = plan(64, 700, 300, 4)
    for length in range(1, 701, 13):
        ((alone, _),) = calls(found, [length])
        crowd = calls(found, [700, length, 5, *range(1, 701, 7)])
        (bucket,) = [b for b, indices in crowd if 1 in indices]
        assert bucket == alone and bucket.length >= length


def test_parts_of_the_caches_are_a_quarter_of_the_next_one():
    assert reaches(8192) == (512, 2048, 8192)
    assert reaches(1024) == (256, 1024)
    assert reaches(511) == (511,)
    assert reaches(3) == (3,)


TPU: dict[str, Any] = {"hardware": "tpu", "attention": "autoselected"}
TPU |= dict.fromkeys(("sa_block_q", "sa_block_kv", "sa_block_kv_compute"), 512)


@pytest.mark.parametrize(
    ("tokens", "changed", "expected"),
    [
        (100, {}, 100),  # another kernel
        (100, {"attention": "flash"}, 128),
        (300, {}, 384),  # the compiler said: bkv_compute=300 must be a multiple of 128
        (512, {}, 512),
        (1535, {}, 1536),  # the compiler said: q_block_size=512 should divide q_seq_len=1535
        (1535, {"sa_block_kv": 1024}, 2048),
        (640, {"sa_block_q": 1024, "sa_block_kv": 1024}, 1024),  # 512 keys are computed at once
        (300, {"sa_block_q": 256}, 512),
        (600, {"sa_block_kv_compute": 384}, 600),  # no length is taken
        (300, {"sa_block_q": 0}, 300),
        (300, {"attention": "dot_product"}, 300),
        (300, {"hardware": "cpu"}, 300),
    ],
)
def test_a_prefill_has_a_length_that_the_kernel_of_tpus_takes(tokens, changed, expected):
    assert fitting(tokens, (TPU | changed).__getitem__) == expected


def test_every_program_of_a_worker_has_such_a_length():
    fits = functools.partial(fitting, value_of=(TPU | {"attention": "flash"}).__getitem__)
    lengths = [one.length for one in plan(64, 1536, 384, 8, fits=fits)]
    assert lengths == [128, 256, 384, 512, 1024, 1536]
