"""Pauses between tries double up to a longest one, and end with the time that is given."""

from rlax_plugin.base.concurrency.retrying import Pauses


def test_pauses_double_and_end_before_the_time_is_over() -> None:
    now_s = 1000.0

    def clock() -> float:
        return now_s

    pauses, slept = Pauses(35.5, clock=clock), []
    while not pauses.over:
        slept.append(pauses.next_s())
        now_s += slept[-1]
    assert slept == [0.5, 1, 2, 4, 8, 10, 10]  # together 35.5 s: the last try is just in time
    assert Pauses(0.4, clock=clock).over


def test_pauses_have_a_longest_one() -> None:
    pauses = Pauses(60.0, longest_s=2.0)
    assert [pauses.next_s() for _ in range(5)] == [0.5, 1, 2, 2, 2]
