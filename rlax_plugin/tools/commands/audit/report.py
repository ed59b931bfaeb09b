"""The result of an audit: the rules, the first violation, and the figures of the run."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


class Rule(enum.StrEnum):
    """The rules that every run obeys; each member names a way to break one."""

    JOURNAL_BROKEN = "journal-broken"  # a segment is missing, exchanged or damaged
    ISSUE_ORDER = "issue-order"  # group ids count from 0 without gaps
    UNKNOWN_GROUP = "unknown-group"  # an event is about a group that was never issued
    UNKNOWN_ATTEMPT = "unknown-attempt"  # attempts count from 1; what was generated was issued
    GENERATED_TWICE = "generated-twice"  # without being issued again in between
    WRONG_TURN = "wrong-turn"  # turns of an episode are generated once, in order, of its sample
    TOO_OLD = "too-old"  # generated with a version older than the group was issued for
    WRONG_ORDER = "wrong-order"  # issued, generated, scored, then trained or dropped
    ENDED_TWICE = "ended-twice"  # a group has one end
    TRAINED_TWICE = "trained-twice"  # the worst way of having two
    LOST_GROUP = "lost-group"  # a younger group trained first: this one never will
    DROPPED_WITHOUT_REASON = "dropped-without-reason"
    STEP_ORDER = "step-order"  # steps count from 1 without gaps, one to a segment with a batch
    WRONG_BATCH = "wrong-batch"  # in issue order, as many groups as the config says and rows hold
    BATCH_DIFFERS = "batch-differs"  # the samples of a batch are not what trained
    SAMPLES_DIFFER = "samples-differ"  # the other samples are not what was scored, or are damaged
    SAMPLES_CHANGED = "samples-changed"  # between scoring and training
    GENERATION_DIFFERS = "generation-differs"  # samples are not those of Issued and Generated
    JUDGEMENT_DIFFERS = "judgement-differs"  # rewards or a rejection are not Scored's
    REPEATED_SEED = "repeated-seed"  # a seed is one sample's only: two with one seed are one sample
    MIXED_VERSIONS = "mixed-versions"  # a sample has one version; "continue": never an older one
    FUTURE_VERSION = "future-version"  # step s trains tokens of versions before s
    TOO_STALE = "too-stale"  # s minus a token's version is at most max_staleness
    STALENESS_DIFFERS = "staleness-differs"  # Trained says another staleness than its samples
    PUBLISHED_EARLY = "published-early"  # version s is what step s produces
    UNPRODUCED = "unproduced"  # generated with a version whose step has no batch
    PUBLISHED_TWICE = "published-twice"  # without a restart in between
    RESUMED_AHEAD = "resumed-ahead"  # from a checkpoint of a step that has no batch yet
    SNAPSHOT_DIFFERS = "snapshot-differs"  # the controller's state is not what the events add up to


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule and its place; numbers that do not apply are None.

    Attributes:
      segment: segment of the journal.
      message: the expected and the found values.
    """

    rule: Rule
    segment: int | None
    step: int | None
    group: int | None
    message: str


@dataclass(slots=True)
class Figures:
    """Counts over the whole run; issued = trained + rejected + dropped + open + ready.

    Attributes:
      issued, trained: numbers of groups.
      rejected, dropped: numbers of groups by reason.
      open: groups issued and not scored when the records end.
      ready: groups accepted and not trained when the records end.
      samples, tokens: numbers of trained samples and tokens.
      turns_discarded: turns of episodes that were void after a restart.
      max_staleness: largest staleness of a trained token, in versions.
    """

    segments: int = 0
    steps: int = 0
    issued: int = 0
    trained: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    open: int = 0
    ready: int = 0
    samples: int = 0
    tokens: int = 0
    max_staleness: int = 0
    reissued: int = 0
    turns_discarded: int = 0
    restarts: int = 0


@dataclass(slots=True)
class Report:
    """The outcome of an audit.

    Attributes:
      run: path or URL of the run's directory.
      violation: the first violation in journal order; None: there are no violations.
      violations: rule -> number of violations. One violation may cause others after it.
      warnings: findings that break no rule.
    """

    run: str
    violation: Violation | None = None
    violations: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)

    @property
    def clean(self) -> bool:
        return self.violation is None

    def to_json(self) -> dict[str, Any]:
        """Returns a document of plain values, for JSON."""
        found = None if self.violation is None else dataclasses.asdict(self.violation)
        # Not dataclasses.asdict of the whole: it makes a Counter of a Counter's items.
        figures = {f.name: getattr(self.figures, f.name) for f in dataclasses.fields(Figures)}
        return {
            "run": self.run,
            "clean": self.clean,
            "violation": found,
            "violations": dict(self.violations),
            "warnings": self.warnings,
            "figures": figures,
        }


class Findings:
    """Collects violations as they are found: keeps the first and counts all.

    Attributes:
      segment: segment of the journal that is being audited.
    """

    def __init__(self, report: Report):
        self._report = report
        self.segment: int | None = None

    def violation(
        self, rule: Rule, message: str, *, step: int | None = None, group: int | None = None
    ) -> None:
        self._report.violations[rule.value] += 1
        if self._report.violation is None:
            self._report.violation = Violation(rule, self.segment, step, group, message)

    def warning(self, message: str) -> None:
        self._report.warnings.append(message)
