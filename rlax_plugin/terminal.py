"""Consoles on which no text does harm, wherever it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.text import Text

from rlax_plugin.harmless_text import harmless


class HarmlessConsole(Console):
    """Makes text harmless when it is shown: also that of records which earlier versions wrote.

    What rich itself tells the terminal, such as colours, is not in the text; square brackets in it
    are square brackets.
    """

    def __init__(self, **options: Any):
        super().__init__(markup=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(harmless(text), **options)  # before widths are measured

    def render(self, renderable: RenderableType, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for segment in super().render(renderable, *args, **kwargs):
            if segment.control:
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)
