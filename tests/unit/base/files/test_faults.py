"""A fault point kills its process at the time that the environment names, and at no other."""

import os
from collections import Counter

from rlax_plugin.base.files import faults
from rlax_plugin.base.files.faults import FaultPoint, reached


def test_a_process_is_killed_when_it_reaches_a_point_for_the_given_time(monkeypatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(faults, "_seen", Counter())
    monkeypatch.setattr(os, "kill", lambda pid, signal: killed.append(pid))
    monkeypatch.setenv(faults.VARIABLE, f"{FaultPoint.STORE_FAILED}:2")
    for point in (FaultPoint.STORE_SLOWED, FaultPoint.STORE_FAILED, FaultPoint.STORE_SLOWED):
        reached(point)
    assert not killed
    reached(FaultPoint.STORE_FAILED)
    assert killed == [os.getpid()]
