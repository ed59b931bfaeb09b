"""A section of a page, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlax_plugin.tools.commands.report.figures import Figure
from rlax_plugin.tools.commands.report.series import Chart


@dataclass(frozen=True, slots=True)
class Table:
    """A table of short texts; the first of each row is its name."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under one heading, with their figures.

    Attributes:
      note: a sentence below the charts.
      about: the questions that the section answers, for the table of contents.
      figures: figures above the charts.
    """

    title: str
    charts: Sequence[Chart]
    note: str = ""
    figures: Sequence[Figure] = ()
    about: str = ""

    @property
    def id(self) -> str:
        """The id of its heading on the page."""
        return f"section-{self.title.lower().replace(' ', '-')}"

    def __bool__(self) -> bool:
        """True if it has any content."""
        return bool(self.charts or self.figures)
