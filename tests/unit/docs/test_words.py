"""The documents and the docstrings of the code are written in plain words of the field."""

from __future__ import annotations

from pathlib import Path

import pytest
from docstrings import ROOT, SOURCES, descriptions, docstrings, offences
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
    "the next prompt is of the domain that is furthest behind its weight",
    "the version that the update produces minus the version of the sample's oldest token",
    "The last two come from a histogram of 64 logarithmic bins",
]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_a_page_is_written_in_plain_words(page: Path) -> None:
    assert found(page.read_text()) == []


@pytest.mark.parametrize("sentence", BEFORE)
def test_each_kind_of_sentence_is_found(sentence: str) -> None:
    assert found(sentence)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_docstrings_of_a_module_are_plain_sentences(path: Path) -> None:
    assert list(offences(path.read_text())) == []


@pytest.mark.parametrize(
    ("docstring", "kinds"),
    [
        ("Returns the ids. What follows is free.", []),
        ("Whole batches only; however long.", []),
        ("What the ledger knows.", ["question"]),
        ("where a run is.", ["question"]),
        ("Whenever it ends.", ["question"]),
        ("Returns the ids", ["period"]),
        ("Returns ids that somebody gave.", ["words"]),
        (f"Returns {'x' * 90}.", ["long"]),
        ("Checks.\n\nArgs:\n  a, b: how many.\n  c: a count,\n    what else.", ["question"]),
        ("Checks.\n\nReturns:\n  What was found.", ["question"]),
        ("Checks.\n\nReturns:\n  count: whether it is one.", ["question"]),
        ("Checks.\n\nRaises:\n  ValueError: it is wrong.\nWhat: who", []),
    ],
)
def test_each_kind_of_docstring_is_found(docstring: str, kinds: list[str]) -> None:
    source = f'def f():\n    """{docstring.replace(chr(10), chr(10) + " " * 4)}"""\n'
    assert [kind for _, kind, _ in offences(source)] == kinds


def test_docstrings_of_modules_classes_and_attributes_are_read() -> None:
    source = '"""A."""\nX = 1\n"""B."""\nclass C:\n    """D."""\n    x: int = 2\n    """E."""\n'
    assert sorted(docstrings(source)) == [(1, "A."), (3, "B."), (5, "D."), (7, "E.")]
    assert list(descriptions("Sums.\n\nArgs:\n  x: one.\n    more: two.\n  **y (int): three.")) == [
        (3, "one."),
        (5, "three."),
    ]


def test_code_and_links_may_hold_any_word() -> None:
    text = "The state `refused` is one of [these](docs/refused.md).\n\n```\nrefused\n```\n"
    assert found(text) == []
    assert len(found("It refused. It is\ntold.\n\nIt was drawn.")) == 3  # also over line ends
