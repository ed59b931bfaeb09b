"""The one table of metrics: every name that a step can report, its unit and its meaning.

The table is docs/metrics.md. Names are ``stage/name``, and a part in angle brackets stands for any
text without a slash: ``objective/<name>`` is any metric that a plug-in's slot reports.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

_PAGE = Path(__file__).with_name("metrics.md")  # a link to the page in docs/
_STAGE = re.compile(r"^## `(?P<name>.+?)`\n\n(?P<text>.+)\n\n(?P<rows>(?:\|.+\n?)+)", re.M)
_ROW = re.compile(r"^\| `(.+?)` \| (.+?) \| (.+?) \| (.+?) \|$", re.M)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
      name: ``stage/name``; a pattern if it contains ``<...>``.
      unit: unit of the value.
      meaning: the quantity that is measured, and over which samples, groups or steps.
      when: steps in which it is reported.
    """

    name: str
    unit: str
    meaning: str
    when: str

    @property
    def is_pattern(self) -> bool:
        return "<" in self.name

    def matches(self, name: str) -> bool:
        """True if ``name`` is this metric, or matches its pattern."""
        return _regex(self.name).fullmatch(name) is not None


@functools.cache
def _regex(name: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, re.split(r"<[^>]+>", name))))


@dataclass(frozen=True, slots=True)
class Stage:
    """The metrics of a stage, whose names begin with its name.

    Attributes:
      name: name of the stage; a pattern if there may be several.
      text: a description that applies to all of them.
    """

    name: str
    text: str
    metrics: tuple[Metric, ...]


def page() -> str:
    """Returns the text of docs/metrics.md."""
    return _PAGE.read_text(encoding="utf-8")


STAGES: tuple[Stage, ...] = tuple(
    Stage(stage["name"], stage["text"], tuple(Metric(*row) for row in _ROW.findall(stage["rows"])))
    for stage in _STAGE.finditer(page())
)

METRICS: tuple[Metric, ...] = tuple(metric for stage in STAGES for metric in stage.metrics)


def find(name: str) -> Metric | None:
    """Returns the row of a metric: its own, or the pattern that it matches; None if unknown."""
    rows = (metric for metric in METRICS if metric.matches(name))
    return min(rows, key=lambda metric: metric.is_pattern, default=None)
