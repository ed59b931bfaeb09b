"""An engine that several files generate from; it takes seconds to compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from runs import Run

if TYPE_CHECKING:
    from tiny_engine import Case


@pytest.fixture(autouse=True)
def no_run_outlives_its_test() -> Iterator[None]:
    yield
    Run.end_all()


@pytest.fixture(scope="session")
def dense_case() -> Case:
    from tiny_engine import Case

    return Case()


@pytest.fixture
def dense(dense_case: Case) -> Iterator[Case]:
    """A dense model; its slots are empty before and after."""
    yield dense_case
    dense_case.engine.reset()
