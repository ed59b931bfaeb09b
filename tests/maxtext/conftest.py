"""Engines that several files generate from; one takes seconds to compile."""

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


@pytest.fixture(scope="session")
def moe_case() -> Case:
    from tiny_engine import MOE, Case

    return Case(**MOE)


@pytest.fixture
def dense(dense_case: Case) -> Iterator[Case]:
    """A dense model; its slots are empty before and after."""
    yield dense_case
    dense_case.engine.reset()


@pytest.fixture
def moe(moe_case: Case) -> Iterator[Case]:
    """DeepSeek's experts; their slots are empty before and after."""
    yield moe_case
    moe_case.engine.reset()
