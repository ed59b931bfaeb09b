"""The lines that docs/symptoms.md quotes consist of messages of the product, and of values."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from documents import ROOT, prose, read

FOLDERS = ("rlax_plugin", "plugins", "maxtext_overrides")
VALUES = {"adamw", "answer", "before", "broken.py", "none", "once", "score", "test", "unavailable"}
"""Values without a digit."""
OTHERS = (
    "failed to connect to all addresses; last error: UNKNOWN:",
    "Failed to connect to remote host: Connection refused",
    "IndexError: list index out of range",
)
"""What gRPC and Python say."""


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, and its numbers, paths and names, without punctuation around them."""
    found = (word.strip("().,:;'\"?") for word in re.split(r"[\s=]+", text.lower()))
    return tuple(word for word in found if re.search(r"\w", word))


@functools.cache
def pieces() -> set[tuple[str, ...]]:
    """What messages of the product have between two of the values that they show."""
    found = {words_of(text) for text in OTHERS}
    for path in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            found |= {
                words_of(one.value)
                for one in parts
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return found - {()}


def is_value(word: str) -> bool:
    return bool(re.search(r"[\d/_]|rlax\.|-0", word)) or word in VALUES


def consists(words: tuple[str, ...], *, cut: bool = False) -> bool:
    """True if words are whole pieces of messages, and values.

    A piece of one word is only between values; otherwise any sentence would consist of such.

    Args:
      cut: True if the end of the last message is left out.
    """
    ends = {0: True}  # where a piece or a value may end -> True if it may be a value
    for begin in range(len(words)):
        if begin not in ends:
            continue
        after_value = ends[begin]
        if is_value(words[begin]):
            ends[begin + 1] = True
        for end in range(begin + 1, len(words) + 1):
            between = after_value or end == len(words) or is_value(words[end])
            whole = words[begin:end] in pieces() and (end > begin + 1 or between)
            last = (
                cut
                and end == len(words)
                and any(one[: end - begin] == words[begin:end] for one in pieces())
            )
            if whole or last:
                ends.setdefault(end, False)
    return len(words) in ends


def quoted() -> list[str]:
    """The lines that commands of rlax are said to print."""
    lines, asks_rlax = [], False
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```", read("symptoms.md"), re.M | re.S):
        if language == "sh":
            asks_rlax = body.startswith("rlax ")
        elif language == "text" and asks_rlax:
            lines += body.splitlines()
    return lines


@pytest.mark.parametrize("line", quoted())
def test_a_quoted_line_is_one_of_the_product(line: str) -> None:
    assert consists(words_of(line), cut=line.endswith(" ...")), line


def test_a_line_in_other_words_is_none_of_the_product() -> None:
    said = (
        "the trainer is busy for 97% of the step and is the bottleneck: more workers would not help"
    )
    assert consists(words_of(said))
    for changed in ("the trainer works for 97%", "the trainer is busy in 97%"):
        assert not consists(words_of(said.replace("the trainer is busy for 97%", changed)))
    assert not consists(words_of(said.replace("would not help", "do not help")))


def test_what_the_page_says_of_a_suspect_worker_is_what_the_doctor_says() -> None:
    (sentence,) = re.findall(r"`(worker NAME is suspect: .*?)`", prose(read("symptoms.md")))
    assert consists(words_of(sentence.replace("NAME", "far-0").replace(" N ", " 1.3 ")))


def test_what_the_page_says_of_an_empty_report_is_on_its_page() -> None:
    sentence = "No step has been recorded so far."
    templates = ROOT / "rlax_plugin/tools/commands/report/templates"
    assert f"*{sentence}*" in read("symptoms.md")
    assert f">{sentence}<" in (templates / "base.html").read_text()
