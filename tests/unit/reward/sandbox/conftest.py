"""A sandbox that root holds, and one that an ordinary user holds."""

import os
import sys
from collections.abc import Iterator

import pytest
from sandbox_driver import Driver

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module", params=["root", "ordinary"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    driver = Driver(request.param)
    missing = driver.ask(offered=True)["missing"]
    if missing:
        driver.close()
        pytest.skip(f"this machine lacks {missing}")
    yield driver
    driver.close()
