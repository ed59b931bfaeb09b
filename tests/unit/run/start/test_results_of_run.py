"""The sentences that a run prints at its end or, if it is complete, at its start."""

from pathlib import Path

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.start.results import too_few_steps


def test_fewer_steps_than_a_run_has_trained_are_told_in_a_sentence(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    assert too_few_steps(files, 50, 1) == ""
    files.put_json("summary.json", {"steps": 180, "complete": True})
    assert too_few_steps(files, 180, 1) == too_few_steps(files, 200, 4) == ""
    told = too_few_steps(files, 50, 1)
    assert told.startswith("steps = 50 is less than the 180 RL steps that ")
    assert "nothing is left to train" in told
    assert "steps = 100 (50 RL steps) is less" in too_few_steps(files, 50, 2)
