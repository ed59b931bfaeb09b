"""Audits a run in one pass over its journal and the files it names, in the order of events."""

from __future__ import annotations

from collections.abc import Callable

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.metrics import file as metrics_file
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.journal import JournalError
from rlax_plugin.run.state.snapshots import snapshot_steps
from rlax_plugin.tools.commands.audit.contents import Contents
from rlax_plugin.tools.commands.audit.event_order import History
from rlax_plugin.tools.commands.audit.record_limits import read_limits
from rlax_plugin.tools.commands.audit.report import Findings, Report, Rule
from rlax_plugin.tools.commands.audit.snapshots import Snapshots


def audit(
    files: RunFiles, progress: Callable[[int, int], object] = lambda done, of: None
) -> Report:
    """Checks that a run obeyed the rules, and reports the first violation if it did not.

    It only reads the run's directory, and the run may be training meanwhile. The audit ends where
    the journal is damaged, since later events cannot be checked without the missing ones.

    Args:
      progress: called after each segment with the number of segments checked and of all.

    Raises:
      ConfigError: the directory is not a run's.
      RlaxError: an existing file cannot be read.
    """
    report = Report(files.location())
    figures, findings = report.figures, Findings(report)
    snapshots = Snapshots(files, findings)  # before the journal: see there
    last = journal.last_number(files)
    if not last:
        reason = "has no journal, so it is not a run directory, or the run has not begun"
        raise ConfigError("RUN", files.url, reason)
    limits = read_limits(files)
    history = History(limits, figures, findings)
    contents = Contents(files, limits, figures, findings)
    snapshots.compare(0, journal.START, history)
    try:
        for segment, checksum in journal.read(files, until=last):
            findings.segment = segment.number
            history.begin_segment(segment.number)
            for event in segment.events:
                history.apply(event)
            contents.check(segment, history)
            snapshots.compare(segment.number, checksum, history)
            figures.segments += 1
            progress(segment.number, last)
    except JournalError as error:
        findings.segment = error.number
        findings.violation(Rule.JOURNAL_BROKEN, str(error))
    else:
        findings.segment = None
        snapshots.end(last)
    history.end()
    contents.end()
    if gaps := _without_metrics(files):
        findings.warning(gaps)
    return report


def _without_metrics(files: RunFiles) -> str:
    """Returns a sentence about trained steps without a line of metrics; empty: there are none.

    A step ends before the next one's checkpoint, so that only those after the newest snapshot may
    still be without a line.
    """
    newest = max(snapshot_steps(files), default=1) - 1
    try:
        steps = metrics_file.read(files.get(metrics_file.NAME)).by_step
    except FileNotFoundError:
        steps = {}
    return metrics_file.lacking(steps, max(newest, *steps, 0))
