"""What workers may claim of weight versions, by the newest one that is published."""

from rlax_plugin.rollout.fleet.newest import NewestVersion


def test_a_worker_may_be_one_version_ahead_and_no_more() -> None:
    newest = NewestVersion()
    assert newest.most_used == 0 and newest.rejection(-1, 0) is None
    newest.number = 4
    assert newest.rejection(5, -1) is None
    assert newest.rejection(4, 6) == "it claims version 6, and the newest is 4"
    assert newest.rejection(-2) == "it claims version -2, and the newest is 4"
