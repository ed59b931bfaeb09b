"""Reports whose new tokens alone are checked: accepted and rejected as if all were checked."""

import dataclasses
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from counted_work import counted
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams
from rlax_plugin.rollout.fleet.replies import Growing, check_reply, take_report
from rlax_plugin.rpc.transport.wire import Told, continued

STOP, MOST, NEWEST = 9, 12, 5
REQUEST = Request(
    Key("train", 0), 1, np.array([1], np.int32), (7, 8), SamplingParams(1.0, 0, 1.0, MOST, (STOP,))
)
RULES: dict[str, Any] = {"worker": "w", "exactly": None, "vocabulary": 10, "side": {}}


def sampled(seed: int, tokens: list[int], versions: list[int], finish: Any) -> Sampled:
    columns = np.array(tokens, np.int32), np.full(len(tokens), -1, np.float32)
    return Sampled(seed, *columns, np.array(versions, np.int32), finish, ("w",))


def plain(
    known: tuple[Sampled, ...] | None, news: list[Told], request: Request
) -> tuple[Sampled, ...]:
    """Joins and checks all tokens of a report."""
    found = continued(request.resume if known is None else known, news, request, "w")
    check_reply(found, request, NEWEST, decode=None, **RULES)
    return found


PIECE = st.tuples(
    st.lists(st.sampled_from([2, 3, 3, 3, STOP, 10]), max_size=5),
    st.integers(0, 3),  # version after the oldest one so far
    st.sampled_from([None, None, None, "stop", "length"]),
    st.sampled_from([0, 0, 0, 0, -1, 1]),  # begins so much earlier or later than it should
)
RESUMED = st.booleans()


@pytest.mark.property
@settings(max_examples=examples(100))
@given(RESUMED, st.lists(st.tuples(PIECE, PIECE), max_size=7), st.integers(0, 3))
def test_reports_are_taken_as_if_all_tokens_were_checked_each_time(
    resumed: bool, reports: list[Any], least: int
) -> None:
    begun = (sampled(7, [2], [0], None), sampled(8, [2, STOP], [0, 0], "stop"))
    request = dataclasses.replace(REQUEST, resume=begun if resumed else (), min_version=least)
    growing: Growing | None = None
    whole: tuple[Sampled, ...] | None = None
    for report in reports:
        news = []
        for index, (tokens, version, finish, off) in enumerate(report):
            known = whole or request.resume
            length = len(known[index].tokens) if known else 0
            versions = [min(NEWEST + 1, version + length // 2)] * len(tokens)
            made = sampled(request.seeds[index], tokens, versions, finish)
            news.append(Told(max(0, length + off), made))
        expected: Any
        try:
            expected = plain(whole, news, request)
        except WorkerError as error:
            expected = str(error)
        try:
            growing = take_report(growing, news, request, NEWEST, decode=None, **RULES)
        except WorkerError:
            if isinstance(expected, str):
                return  # whose worker is not listened to any more
            raise
        assert not isinstance(expected, str), expected
        whole = found = expected
        assert growing.tokens == sum(len(s.tokens) for s in found)
        assert growing.unfinished == any(s.finish is None for s in found)
        if len(news[0].sampled.tokens) % 2:  # else they are joined later
            assert_equal(growing.samples(), whole or ())
    if growing is not None:
        assert_equal(growing.samples(), whole or ())


def assert_equal(found: tuple[Sampled, ...], expected: tuple[Sampled, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        for name in ("tokens", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert (one.seed, one.finish, one.workers) == (other.seed, other.finish, other.workers)


def test_a_report_costs_the_same_after_many() -> None:
    long = dataclasses.replace(REQUEST, sampling=SamplingParams(1.0, 0, 1.0, 10_000, (STOP,)))
    growing, costs = None, []
    for number in range(200):
        begins_at = 4 * number
        news = [Told(begins_at, sampled(seed, [2] * 4, [1] * 4, None)) for seed in long.seeds]
        with counted() as work:
            growing = take_report(growing, news, long, NEWEST, decode=None, **RULES)
        costs.append((work.calls, work.jumps))
    often, seldom = Counter(costs[1:]).most_common()  # all but one in 64, which joins them
    assert (often[1], seldom[1]) == (196, 3)
    assert growing is not None and growing.lengths == [800, 800]
    assert_equal(growing.samples(), tuple(sampled(s, [2] * 800, [1] * 800, None) for s in (7, 8)))


def test_reports_of_single_tokens_or_none_take_little_more_memory_than_their_tokens() -> None:
    most = 3_000
    long = dataclasses.replace(REQUEST, sampling=SamplingParams(1.0, 0, 1.0, most + 1, (STOP,)))
    growing = None
    tracemalloc.start()
    for begins_at in range(most):
        news = [Told(begins_at, sampled(seed, [2], [1], None)) for seed in long.seeds]
        growing = take_report(growing, news, long, NEWEST, decode=None, **RULES)
        nothing = [Told(begins_at + 1, sampled(seed, [], [], None)) for seed in long.seeds]
        growing = take_report(growing, nothing, long, NEWEST, decode=None, **RULES)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert growing is not None and growing.lengths == [most, most]
    assert taken < 2 * 2 * most * 12  # bytes of a token, its log-prob and its version
