"""A section of a page, and the tables and lists of prompts of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlax_plugin.tools.commands.report.figures import Figure
from rlax_plugin.tools.commands.report.series import Chart

_LONGEST = 1500  # characters of a text


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Returns the beginning of a long text; the page makes it harmless and escapes it."""
    return text[:longest] + (" ..." if len(text) > longest else "")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of short texts; the first of each row is its name."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """A prompt that is shown as an example.

    Attributes:
      facts: values in the order of ``PromptList.columns``.
      text: beginning of the prompt, see ``shortened``.
    """

    facts: Sequence[str]
    text: str


@dataclass(frozen=True, slots=True)
class PromptList:
    """A list of example prompts.

    Attributes:
      columns: names of the facts about each prompt, besides its text.
      texts: True if the prompts' texts are known.
    """

    title: str
    columns: Sequence[str]
    prompts: Sequence[ShownPrompt]
    texts: bool = True


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
