"""One finished run for all tests that read one, or go on from a copy of it."""

import fcntl
import shutil
from pathlib import Path

from runs import TWO_WORKERS, Records, Run

# Few prompts, so that many are asked early and late.
SETTINGS = (
    "steps=20",
    TWO_WORKERS,
    "rlax.trainer.learning_rate=10",
    "rlax.trainer.checkpoint_every=2",
    "rlax.prompt_source.count=32",
    "rlax.evaluation.problems=32",
    "rlax.rewards=[{name: even}, {name: even}]",
)


class FinishedRun:
    """A run that is made by the first process that asks for it.

    Args:
      shared: a directory of all processes of pytest.
    """

    def __init__(self, shared: Path):
        self._directory = shared / "finished"
        said = self._directory / "said.txt"
        with (shared / "finished.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the one that makes it has deadlines
            if not said.exists():
                shutil.rmtree(self._directory, ignore_errors=True)  # of one that failed
                self._directory.mkdir()
                status, out = Run(self._directory, *SETTINGS).end()
                assert status == 0, out
                said.write_text(out)
        self.said = said.read_text()

    def copied_to(self, directory: Path) -> Records:
        """The run in ``directory``, where a test may go on with it or write into it."""
        shutil.copytree(self._directory / "runs", directory / "runs")
        return Records(directory)
