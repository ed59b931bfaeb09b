"""``metrics.jsonl`` on a full disk: the error names the file, and no line is lost or repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlax_plugin.errors import RlaxError
from rlax_plugin.metrics.file import MetricsFile
from rlax_plugin.records.files import RunFiles

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
