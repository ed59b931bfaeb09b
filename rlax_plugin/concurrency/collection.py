"""Python's garbage collector, which stops every thread of a process while it looks at all objects.

It owns when long-lived objects are left out of this.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def old_objects_kept() -> Iterator[None]:
    """Leaves the present objects out of collections within ``with``.

    Imported modules have some hundred thousand objects, and looking at them takes the event loop
    50 ms each time. What becomes garbage among them is collected afterwards.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
