"""Python's garbage collector, which stops every thread of a process while it looks at objects.

It owns which objects are left out of this, and when all others are looked at.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_EVERY_S = 30.0
# Objects that are new before the youngest are looked at, and how often that is done before those
# that have survived it are; a few milliseconds. The oldest ones are looked at by the clock alone.
_THRESHOLDS = 2_000, 10, 1 << 30
_ENDED_S = 10.0  # for a collection to end


@contextmanager
def old_objects_kept(every_s: float = _EVERY_S) -> Iterator[None]:
    """Leaves the present objects out of collections within ``with``, and makes long ones rare.

    Imported modules have some hundred thousand objects, and looking at them takes the event loop
    50 ms each time. What becomes garbage among them is collected afterwards. The samples of a large
    step are as many objects again, which Python would look at several times while they arrive.
    Libraries that are imported within ``with`` are left out after the first look, or the second,
    the fourth and so on.

    Args:
      every_s: time between two looks at all other objects.
    """
    before, ended = gc.get_threshold(), threading.Event()

    def collect() -> None:
        looks = 0
        while not ended.wait(every_s):
            gc.collect()
            looks += 1
            if looks.bit_count() == 1:
                gc.freeze()

    thread = threading.Thread(target=collect, name="rlax-collection", daemon=True)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_ENDED_S)
        gc.set_threshold(*before)
        gc.unfreeze()
