"""``metrics.jsonl`` on a full disk: the error names the file, and no line is lost or repeated."""

from pathlib import Path

import pytest

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.metrics.file import MetricsFile

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    file = MetricsFile(RunFiles(tmp_path), tmp_path)
    assert file.rewind(0) == []
    file.add(1, {"loss": 0.5})
    path = tmp_path / "metrics.jsonl"
    file.close()
    file._file = FULL.open("ab")
    with pytest.raises(RlaxError, match=rf"^{path} cannot be written: No space left on device$"):
        file.add(2, {"loss": 0.25})
    file.close()  # it does not raise for the line that is still to be written
    again = MetricsFile(RunFiles(tmp_path), tmp_path)
    assert again.rewind(1) == [{"step": 1, "loss": 0.5}]
    again.close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.tmp").mkdir()
    file = MetricsFile(RunFiles(tmp_path), tmp_path)
    with pytest.raises(RlaxError, match=r"metrics\.jsonl cannot be written: Is a directory"):
        file.rewind(0)


def test_the_metrics_of_a_step_that_had_not_ended_count(tmp_path: Path) -> None:
    file = MetricsFile(RunFiles(tmp_path), tmp_path)
    file.rewind(0)
    file.add(1, {"loss": 0.5})
    for _ in range(2):  # its line is there at the second time
        lines = [{"step": 1, "loss": 0.5}, {"step": 2, "unfinished": 1.0}]
        assert file.rewind(2, {"unfinished": 1.0}) == lines
    assert file.rewind(1, {"unfinished": 1.0}) == [{"step": 1, "loss": 0.5}]
    file.close()
