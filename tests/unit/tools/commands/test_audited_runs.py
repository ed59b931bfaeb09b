"""``rlax audit``: a clean history with known figures, files that were altered, the command."""

import json
from pathlib import Path

import pytest
from histories import REASON, History, episode, group, place, sampled
from typer.testing import CliRunner

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.files.seals import sealed
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.pruned import Pruned, write_pruned
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.commands.audit import Rule, audit

FIGURES = {
    "segments": 5,
    "steps": 3,
    "issued": 11,
    "trained": 6,
    "rejected": {"too easy": 1},
    "dropped": {REASON: 1},
    "open": 2,
    "ready": 1,
    "samples": 12,
    "tokens": 6 * (2 + 3),
    "max_staleness": 2,
    "reissued": 4,
    "turns_discarded": 0,
    "restarts": 1,
}


def test_a_group_that_was_no_longer_needed_is_no_lost_group(tmp_path: Path) -> None:
    """Group 8 was issued for version 1, which at most two versions of staleness exclude now."""
    history = History()
    last = history.segments[4]
    last.events.append(ev.Dropped(8, "no longer needed", samples=2, tokens=7))
    assert last.snapshot is not None
    still_open = last.snapshot["run_state"]["open"]
    still_open[:] = [one for one in still_open if one["group"] != 8]
    history.write(RunFiles(tmp_path))
    report = audit(RunFiles(tmp_path))
    assert (report.violation, report.warnings) == (None, [])
    assert report.figures.open == 1
    assert report.figures.dropped == {REASON: 1, "no longer needed": 1}


# --- falsified on disk ---------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    History().write(RunFiles(tmp_path))
    return tmp_path


def segment_file(run: Path, number: int) -> Path:
    return run / journal.segment_name(number)


def test_samples_that_were_altered_or_are_missing(run: Path) -> None:
    file = run / journal.samples_name(2)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    report = audit(RunFiles(run))
    assert place(report) == (Rule.SAMPLES_DIFFER, 2, 2, None)
    assert report.violation is not None and "the file has changed" in str(report.violation)
    assert (report.figures.samples, report.figures.trained) == (8, 6)
    file.unlink()
    assert place(audit(RunFiles(run))) == (Rule.SAMPLES_DIFFER, 2, 2, None)


def test_samples_of_no_batch_that_are_missing(run: Path) -> None:
    (run / journal.samples_name(5)).unlink()
    assert place(audit(RunFiles(run))) == (Rule.SAMPLES_DIFFER, 5, None, None)


def test_rewritten_segment_ends_the_audit_there(run: Path) -> None:
    """Its events are possible; only its checksum is wrong."""
    segment = segment_file(run, 2)
    segment.write_bytes(segment.read_bytes().replace(b"worker lost", b"worker last"))
    report = audit(RunFiles(run))
    assert place(report) == (Rule.JOURNAL_BROKEN, 2, None, None)
    assert (report.figures.segments, report.figures.steps) == (1, 1)


def test_events_are_checked_where_samples_are_not_kept(tmp_path: Path) -> None:
    """Group 3 trains at step 2 with versions 0 and 1."""
    history, files = History(), RunFiles(tmp_path)
    mixed = tuple(episode(i, sampled(3, i, [0, 1, 1][: 2 + i])) for i in range(2))
    history.segments[0].rescore(history.groups[3], group(3, 0, "d", episodes=mixed))
    for max_staleness, expected in ((2, (None,)), (1, (Rule.TOO_STALE, 2, 2, 3))):
        history.config["staleness"]["max_staleness"] = max_staleness
        history.write(files)
        write_pruned(files, Pruned(until=2, step=2))
        for number in (1, 2):
            files.delete(journal.samples_name(number))
        report = audit(files)
        assert place(report) == expected and len(report.warnings) == 1
        assert report.figures.tokens == 6 * (2 + 3) and report.figures.max_staleness == 2
        files.delete("")


def test_a_journal_without_its_end(run: Path) -> None:
    segment_file(run, 5).unlink()
    report = audit(RunFiles(run))
    assert place(report) == (Rule.SNAPSHOT_DIFFERS, None, 3, None)
    assert report.violation is not None
    assert "expected a journal up to segment 5, found 4" in report.violation.message


def test_trained_steps_without_metrics_are_a_warning(run: Path) -> None:
    """The newest snapshot is of step 3, whose own line may be yet to come."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    for kept, sentence in (
        (lines[:2], []),
        (lines[:1], ["metrics.jsonl: 1 of 2 steps have no line (step 2)"]),
        (lines[1:], ["metrics.jsonl: 1 of 3 steps have no line (step 1)"]),
    ):
        metrics.write_text("".join(kept))
        assert (audit(RunFiles(run)).warnings, audit(RunFiles(run)).clean) == (sentence, True)
    metrics.unlink()
    assert audit(RunFiles(run)).warnings == ["metrics.jsonl: 2 of 2 steps have no line (step 1, 2)"]


def test_snapshots_that_were_exchanged_or_damaged(run: Path) -> None:
    newer = run / "controller/00000003.json"
    document = json.loads(newer.read_text())
    del document["crc32c"]
    newer.write_bytes(sealed(json.dumps(document | {"checksum": "00000001"})))
    assert place(audit(RunFiles(run))) == (Rule.SNAPSHOT_DIFFERS, 5, 3, None)
    newer.write_bytes(sealed(json.dumps(document | {"step": 2})))
    assert place(audit(RunFiles(run))) == (Rule.SNAPSHOT_DIFFERS, None, 3, None)
    newer.write_text(json.dumps(document))  # without a checksum
    assert place(audit(RunFiles(run))) == (Rule.SNAPSHOT_DIFFERS, None, 3, None)
    newer.write_text("{")
    assert place(audit(RunFiles(run))) == (Rule.SNAPSHOT_DIFFERS, None, 3, None)
    newer.unlink()  # pruned, as those of old checkpoints are
    assert audit(RunFiles(run)).clean


# --- the command ---------------------------------------------------------------------------------


def test_json_is_all_there_is_on_stdout(run: Path) -> None:
    result = CliRunner().invoke(app, ["audit", str(run), "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "run": str(run),
        "clean": True,
        "violation": None,
        "violations": {},
        "warnings": [],
        "figures": FIGURES,
    }
    segment_file(run, 3).unlink()
    result = CliRunner().invoke(app, ["audit", str(run), "--json"])
    assert (result.exit_code, result.stderr) == (1, "")
    document = json.loads(result.stdout)
    assert not document["clean"] and document["violations"] == {"journal-broken": 1}
    assert document["violation"]["segment"] == 3 and document["violation"]["group"] is None


def test_the_table_and_the_verdict(run: Path) -> None:
    result = CliRunner().invoke(app, ["audit", str(run)])
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "groups issued 11" in words and f"dropped 1 {REASON} 1" in words
    assert "samples trained 12 30 tokens" in words
    assert result.stdout.splitlines()[-1].startswith("clean: every group is accounted for")
    segment_file(run, 3).unlink()
    result = CliRunner().invoke(app, ["audit", str(run)])
    assert result.exit_code == 1
    assert "violation: journal-broken at segment 3: " in result.stdout


def test_what_is_no_run_is_one_message_and_status_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: RUN = '{tmp_path}': has no journal, so")
    assert result.stderr.count("\n") == 1
    History().write(RunFiles(tmp_path))
    (tmp_path / "config.yml").unlink()
    with pytest.raises(ConfigError, match=r"config\.yml: is missing"):
        audit(RunFiles(tmp_path))
