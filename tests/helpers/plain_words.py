"""Phrases that no text for users may contain, and what to write instead."""

from __future__ import annotations

import re

from documents import prose

# Pattern -> what to write instead.
BANNED = {
    # Private words where the field has a term.
    r"draws?|drew|drawn|drawing": "generate, sample, or plot",
    r"the book|books": "run state",
    r"keepers?": "pinned worker",
    r"proofs?|prov(?:es?|ed|ing)": "weight verification, verify, check",
    r"doubts?": "warnings",
    r"refus(?:es?|ed|ing|als?)": "reject, or say that it is an error",
    r"gated|gat(?:es|ing) (?:a|the) groups?": "a gate rejects a group",
    r"(?:through|by|over) the link": "trainer port",
    r"strangers?": "third-party",
    r"anew": "again, or from the start",
    r"(?:is|are|being) asked|asked (?:again|next|of)": "is issued, generated or chosen",
    r"(?:is|are) told": "learns, receives, is reported",
    # Subjects that name no one.
    r"nobody|somebody|anybody": "name the subject",
    r"whoever|who needs": "name the subject, or: if you need",
    r"what it is that": "name the thing",
    r"nothing of (?:it|them)": "none of its samples, no part of it",
    r"nothing waits|nothing that is not|none of it": "say what happens, without a double negation",
    r"not without": "say it without a double negation",
    # Constructions that have to be read twice.
    r"so that (?:they|it) needs?": "so they need, or: therefore they need",
    r"what this one|of one named": "name the thing",
    r"is all that": "only ... differs",
    r"no number is": "no value satisfies this",
    r"is no whole number": "is not a multiple of",
    r"otherwise than|(?:come|comes|came|choose|chosen) (?:out )?otherwise": "differently",
    r"at any moment|any moment": "at any point",
    r"not trained yet": "not yet used for training",
    r"to go on with|goes? on with": "next; continues with",
    r"the latter|the former": "name it",
    r"in vain": "after n failed attempts",
    r"held against": "checked against, compared with",
    # Sentences that a first reader did not understand.
    r"furthest behind": "the furthest below the number that its weight asks for",
    r"column within a column": "a field of a column that has several",
    r"version that the update produces": "version that the update makes; say why on-policy is 1",
    r"logarithmic bins": "bins whose edges grow by a factor; say what this does to the metric",
    r"not called for groups with": "say what these groups get",
    r"must have answer_tokens": "must provide right answers",
    r"trained on by the same weights": "generated with the weights that the update starts from",
}


def words(text: str) -> str:
    """The prose of a page, without inline code and the targets of its links."""
    text = re.sub(r"`[^`]*`", "``", prose(text))
    return re.sub(r"\]\([^)]*\)|<https?:[^>]*>", "]", text)


def found(text: str) -> list[str]:
    """Each banned phrase in a text, with the words around it and what to write instead."""
    hits = []
    for paragraph in words(text).split("\n\n"):
        line = " ".join(paragraph.split())
        for pattern, instead in BANNED.items():
            for match in re.finditer(rf"\b(?:{pattern})\b", line, re.IGNORECASE):
                around = line[max(0, match.start() - 40) : match.end() + 40]
                hits.append(f"{match[0]!r} in {around!r}; instead: {instead}")
    return hits
