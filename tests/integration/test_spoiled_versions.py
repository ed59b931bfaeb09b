"""A version whose file is wrong on the disk: the trainer publishes it again, and nobody is blamed.

Two processes of the only worker have to find it wrong; the run goes on with a third.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import HELPERS, Run, digests, plugins

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

STEPS, SPOILED = 6, 3


@pytest.mark.slow
def test_a_version_that_two_processes_find_wrong_is_published_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=":")
    run = Run(
        tmp_path,
        plugins("spoiled_store"),
        f"rlax.weights.store={{name: spoiled, step: {SPOILED}, how: flipped}}",
        f"steps={STEPS}",
    )
    status, said = run.end()
    assert status == 0, said
    spoiled = (run.dir / "spoiled").read_text()
    assert said.count("is quarantined") == 2, said
    assert f"two worker processes have found version {SPOILED} wrong in" in said
    assert f"version {SPOILED} is published again" in said
    assert len(run.steps()) == STEPS
    # Under its number, with the same weights, at another path.
    assert all(len(found) == 1 for found in digests(run.dir).values())
    assert Path(spoiled).name.startswith(f"{SPOILED:08d}-")
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation
