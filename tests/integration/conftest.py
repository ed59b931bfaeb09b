"""What all integration tests share."""

import functools
import os
from collections.abc import Iterator

import pytest
from finished_run import FinishedRun
from runs import Run

from rlax_plugin.base.concurrency.retrying import Pauses


@pytest.fixture(autouse=True)
def no_run_outlives_its_test() -> Iterator[None]:
    """A test that fails leaves nothing that takes time from the next ones."""
    yield
    Run.end_all()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in this process tries soon again to load weights that it could not load."""
    pauses = functools.partial(Pauses, first_s=0.05, longest_s=0.1)
    monkeypatch.setattr("rlax_plugin.rollout.worker.member.Pauses", pauses)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """It is made once for all processes of pytest-xdist."""
    own = tmp_path_factory.getbasetemp()
    return FinishedRun(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)
