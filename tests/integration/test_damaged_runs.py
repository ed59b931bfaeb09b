"""A run whose records were damaged while it did not run: it goes on, or says how it can."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from finished_run import SETTINGS, FinishedRun
from runs import CONFIG, DEADLINE_S, HELPERS, Run, held, process
from waiting import wait_until

from rlax_plugin.commands.audit import audit
from rlax_plugin.commands.status.show import lines_of
from rlax_plugin.commands.status.source import Seen
from rlax_plugin.liveness.status_file import last_status
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles


@pytest.mark.slow
def test_a_damaged_checkpoint_and_segment_are_said_where_they_are_seen(
    tmp_path: Path, finished_run: FinishedRun
) -> None:
    run = finished_run.copied_to(tmp_path).dir
    last = run / journal.segment_name(journal.last_number(RunFiles(run)))
    for path in (run / "checkpoints/20.npz", last):
        data = path.read_bytes()
        path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    status, out = Run(tmp_path, *SETTINGS, "steps=22").end()
    said = " ".join(out.split())
    assert status == 0, out
    seen = last_status(run)
    assert seen is not None and seen.controller is not None
    checkpoint, segment = seen.controller.damaged
    assert checkpoint.startswith("the checkpoint of step 20 cannot be read: ")
    assert segment.startswith("the last segment does not count, and what it recorded is generated")
    assert f"warning: {checkpoint}" in said and f"warning: {segment}" in said
    assert f"since its start: {segment}" in lines_of(Seen(seen))


@pytest.mark.slow
def test_a_run_says_that_its_state_directory_was_removed_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    state, going, log = tmp_path / "state", tmp_path / "going", tmp_path / "train.log"
    settings = (*held({2: going}), f"rlax.state_dir={state}", "rlax.evaluation.problems=0")
    removed = f"warning: the state directory {state} was removed while the run trains: it goes on"

    def said() -> str:
        return " ".join(log.read_text().split()) if log.exists() else ""

    with process(tmp_path, "train", "train", CONFIG, *settings, "steps=3") as trainer:
        wait_until(lambda: "step 1/3" in said(), "step 1", limit_s=DEADLINE_S)
        shutil.rmtree(state)
        wait_until(lambda: removed in said() or trainer.poll() is not None, "the line")
        going.touch()
        assert trainer.wait(DEADLINE_S) == 0, log.read_text()
    assert said().count(removed) == 1 and not state.exists()
    assert audit(RunFiles(tmp_path / "runs/testing")).clean


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_snapshot(
    tmp_path: Path, finished_run: FinishedRun
) -> None:
    run = finished_run.copied_to(tmp_path).dir
    (run / "config.json").write_text('{"config": "tes')  # config.yml has the config
    snapshot = run / "controller/00000020.json"
    snapshot.write_bytes(snapshot.read_bytes()[:-30])
    longer = (*SETTINGS, "steps=22")
    status, out = Run(tmp_path, *longer).end()
    said = " ".join(out.split())
    assert status == 1 and f"{snapshot} is damaged: " in said
    remedy = re.search(r"move (\S+) out of that directory, .* the checkpoint of step 18", said)
    assert remedy is not None, out
    checkpoint = Path(remedy[1])
    assert checkpoint == run / "checkpoints/20.npz"
    checkpoint.rename(tmp_path / checkpoint.name)
    status, out = Run(tmp_path, *longer).end()
    assert status == 0 and "steps 19 to 20 are trained again" in " ".join(out.split()), out
    report = audit(RunFiles(run))
    assert report.clean and report.figures.steps == 22
