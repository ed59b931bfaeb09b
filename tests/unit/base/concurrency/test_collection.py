"""Objects that were there before are not looked at by collections, and are collected afterwards."""

import gc
import weakref

from waiting import wait_until

from rlax_plugin.base.concurrency.collection import old_objects_kept


class Ring:
    """Refers to itself, so that only a collection ends it."""

    def __init__(self) -> None:
        self.itself = self


def test_old_objects_are_left_out_until_the_end() -> None:
    old = Ring()
    ended = weakref.ref(old)
    with old_objects_kept():
        assert gc.get_freeze_count() > 10_000
        tracked = len(gc.get_objects())
        young = weakref.ref(Ring())
        del old
        gc.collect()
        assert tracked < 1_000 and young() is None and ended() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert ended() is None


def test_many_new_objects_are_looked_at_as_they_come_and_all_of_them_by_the_clock() -> None:
    before = gc.get_threshold()
    with old_objects_kept(every_s=3600):
        young, old = (gc.get_stats()[n]["collections"] for n in (0, 2))
        kept = [[] for _ in range(300_000)]
        assert gc.get_stats()[0]["collections"] > young + 10
        assert gc.get_stats()[2]["collections"] == old
        del kept
    assert gc.get_threshold() == before
    with old_objects_kept(every_s=0.01):
        ring = Ring()
        gc.collect(1)  # it survives, and would not be looked at again by these
        ended = weakref.ref(ring)
        del ring
        wait_until(lambda: ended() is None, "it is never collected")
        frozen = gc.get_freeze_count()
        imported = [[] for _ in range(2000)]  # of the frozen ones some may end meanwhile
        wait_until(lambda: gc.get_freeze_count() >= frozen + 1000, "they are always looked at")
        del imported
