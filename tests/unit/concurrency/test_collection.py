"""Objects that were there before are not looked at by collections, and are collected afterwards."""

from __future__ import annotations

import gc
import weakref

from rlax_plugin.concurrency.collection import old_objects_kept


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
