"""Samples the stacks of a run's processes, for ``where_time_goes.py``, which puts it on their path.

Python imports a module of this name when it starts.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

_INTERVAL_S = 0.01
# Functions in which a thread only waits for others.
_WAITS = {"wait", "select", "poll", "_worker", "get", "_do_next", "_copy", "run"}
_OWN = ("rlax_plugin", "maxtext_overrides", "plugins")


def _name(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_code.co_name}"


def _line(frame: FrameType) -> str:
    """Returns the innermost function of this project, and behind ``>`` the innermost of all."""
    inner: FrameType | None = frame
    while inner is not None and not any(part in inner.f_code.co_filename for part in _OWN):
        inner = inner.f_back
    if inner is None or inner is frame:
        return _name(frame)
    return f"{_name(inner)} > {_name(frame)}"


def _sample(directory: Path, role: str) -> None:
    while not (directory / "go").exists():
        time.sleep(0.05)
    end_s = time.monotonic() + float((directory / "go").read_text())
    me, samples = threading.get_ident(), 0
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    while time.monotonic() < end_s:
        time.sleep(_INTERVAL_S)
        samples += 1
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for thread, frame in sys._current_frames().items():
            if thread != me and frame.f_code.co_name not in _WAITS:
                found[names.get(thread, "another")][_line(frame)] += 1
    target = directory / f"{role}-{os.getpid()}.json"
    text = json.dumps({"samples": samples, "threads": found})
    target.with_suffix(".part").write_text(text, encoding="utf-8")
    target.with_suffix(".part").rename(target)


def _start() -> None:
    directory = os.environ.get("RLAX_BENCH_STACKS")
    role = next((name for name in ("train", "serve") if name in sys.argv), None)
    if directory and role:
        name = {"train": "trainer", "serve": "worker"}[role]
        threading.Thread(target=_sample, args=(Path(directory), name), daemon=True).start()


_start()
