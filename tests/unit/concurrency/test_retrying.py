"""Pauses between tries double up to a longest one, and end with the time that is given."""

import pytest

from rlax_plugin.concurrency import retrying


def test_pauses_double_and_end_before_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(retrying.time, "monotonic", lambda: now_s)
    pauses, slept = retrying.Pauses(35.5), []
    while not pauses.over:
        slept.append(pauses.next_s())
        now_s += slept[-1]
    assert slept == [0.5, 1, 2, 4, 8, 10, 10]  # together 35.5 s: the last try is just in time
    assert retrying.Pauses(0.4).over


def test_pauses_have_a_longest_one() -> None:
    pauses = retrying.Pauses(60.0, longest_s=2.0)
    assert [pauses.next_s() for _ in range(5)] == [0.5, 1, 2, 2, 2]
