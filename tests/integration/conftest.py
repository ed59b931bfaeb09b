"""What all integration tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from runs import Run


@pytest.fixture(autouse=True)
def no_run_outlives_its_test() -> Iterator[None]:
    """A test that fails leaves nothing that takes time from the next ones."""
    yield
    Run.end_all()
