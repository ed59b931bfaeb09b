"""README.md, CONTRIBUTING.md and docs/ are written in plain words of the field."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import DOCUMENTS
from plain_words import found

BEFORE = [  # from the guide to style: each is a kind of sentence that has to be found
    "nothing of it that is not trained yet will be",
    "In a group of equal rewards that pay is all that differs, and a std would scale it up",
    "So it does after a kill at any moment: what was drawn is kept.",
    "Several updates with one batch leave the policy, so that they need a term with a ratio to it.",
    "A worker that is told is told in the reply to a heartbeat.",
    "mean of what this one gave; of one named twice, with its place",
    "`prompt_source`: what is asked",
    "must be the 64 rows of a batch: no number is, so change the rows",
    "are chosen otherwise than they were",
    "is of 7 updates, which is no whole number of steps of 4",
]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_a_page_is_written_in_plain_words(page: Path) -> None:
    assert found(page.read_text()) == []


@pytest.mark.parametrize("sentence", BEFORE)
def test_each_kind_of_sentence_is_found(sentence: str) -> None:
    assert found(sentence)


def test_code_and_links_may_hold_any_word() -> None:
    text = "The state `refused` is one of [these](docs/refused.md).\n\n```\nrefused\n```\n"
    assert found(text) == []
    assert len(found("It refused. It is\ntold.\n\nIt was drawn.")) == 3  # also over line ends
