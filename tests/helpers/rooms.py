"""``python tests/helpers/rooms.py`` prints how many tests of each room run in which target."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {"make test": "", "make test-ci": "ci", "make test-all only": "long"}


class Rooms:
    """Counts what pytest collects."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marks = {mark.name for mark in item.iter_markers()}
            target = "ci" if "ci" in marks else "long" if "long" in marks else ""
            folder = item.path.parent.relative_to(ROOT / "tests")
            self.counts.setdefault(str(folder), Counter())[target] += 1


if __name__ == "__main__":
    rooms = Rooms()
    pytest.main(["--collect-only", "-qqq", "--no-header", str(ROOT / "tests")], plugins=[rooms])
    print(f"{'room':<24}" + "".join(f"{name:>20}" for name in TARGETS))
    for room, counts in (
        *sorted(rooms.counts.items()),
        ("all", sum(rooms.counts.values(), Counter())),
    ):
        print(f"{room:<24}" + "".join(f"{counts[target]:>20}" for target in TARGETS.values()))
