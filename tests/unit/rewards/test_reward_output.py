"""What reward processes print, on its way to their log."""

from __future__ import annotations

import os
from pathlib import Path

from rlax_plugin.rewards.output import RewardOutput


def test_a_log_that_is_full_gets_no_more(tmp_path: Path) -> None:
    path = tmp_path / "logs/rewards.log"
    for _ in range(2):  # the next process of the run goes on with the file
        one = RewardOutput(path, most_bytes=100_000)
        for _ in range(10):
            os.write(one.descriptor, b"x" * 30_000)
        one.close()
    written = path.read_bytes()
    assert written.endswith(b"what is printed from here on is not kept\n")
    assert written.count(b"not kept") == 1
    assert 100_000 <= len(written) <= 100_000 + (1 << 16) + 100
