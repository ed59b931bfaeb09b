"""What a section of a page consists of, besides its charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlax_plugin.commands.report.figures import Figure
from rlax_plugin.commands.report.series import Chart

_LONGEST = 1500  # characters of a text


def shortened(text: str, longest: int = _LONGEST) -> str:
    """The beginning of a text that may be long; the page makes it harmless and escapes it."""
    return text[:longest] + (" ..." if len(text) > longest else "")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of short texts; the first of each row is its name."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class ShownSample:
    """A completion with its reward; both are cut if they are long."""

    reward: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """A prompt that is shown as an example.

    Attributes:
      facts: in the order of ``PromptList.columns``.
      text: see ``shortened``.
      samples: of it; may be none.
    """

    facts: Sequence[str]
    text: str
    samples: Sequence[ShownSample] = ()


@dataclass(frozen=True, slots=True)
class PromptList:
    """Prompts below each other.

    Attributes:
      columns: what is said of each, beside its text.
      texts: whether their texts are known.
      samples: title of the column of samples; empty: there is none.
    """

    title: str
    columns: Sequence[str]
    prompts: Sequence[ShownPrompt]
    texts: bool = True
    samples: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under one heading, and what else belongs to them.

    Attributes:
      note: a sentence below the charts.
      figures: above the charts.
      tables, prompts: below the charts.
    """

    title: str
    charts: Sequence[Chart]
    note: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    prompts: Sequence[PromptList] = ()

    @property
    def id(self) -> str:
        """Of its heading on the page."""
        return f"section-{self.title.lower().replace(' ', '-')}"

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.charts or self.figures or self.tables or self.prompts)
