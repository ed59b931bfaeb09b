"""What text from outside becomes before anything holds or shows it."""

import json
import random
import sqlite3
import unicodedata

import pyarrow as pa
import pytest

from rlax_plugin.base.text.harmless import harmless, hidden_character, one_line, storable

ORDINARY = (
    "",
    "1 + 1 = 2\n",
    "\tindented\r\nand so on",
    "naïve Ωμέγα 数学 \u200f\u05d0\u05d1\u200e \u0645\u06cc\u200c\u062e",
    "👩\u200d👩\u200d👧 \ufe0f \u00a0 \ue000 \ufffd \u2028",
    r"\x1b is five characters",
)
HOSTILE = {
    "\x1b[31mred\x1b[0m": r"\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "a\x00b\x08\x0b\x0c\x7f": r"a\x00b\x08\x0b\x0c\x7f",
    "\x85\x9b2J\x9f": r"\x85\x9b2J\x9f",
    "\u202egnp.exe\u202c\u2066\u2069": r"\u202egnp.exe\u202c\u2066\u2069",
    "\ud800": "\ufffd",
    "a\udfff\ud800b": "a\ufffd\ufffdb",
    "Ω\x1b": r"Ω\x1b",
}


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_the_very_same(text):
    assert harmless(text) is text and storable(text) == text


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_what_a_terminal_obeys_becomes_legible(text, shown):
    assert harmless(text) == shown == harmless(shown)


def test_only_surrogates_are_taken_from_what_is_stored():
    assert storable("1\x1f2\x1e\ud800Ω") == "1\x1f2\x1e\ufffdΩ"


def test_no_character_is_left_that_a_terminal_obeys_or_a_format_rejects():
    all_of_them = harmless("".join(map(chr, range(0x110000))))
    left = {c for c in set(all_of_them) if unicodedata.category(c) in ("Cc", "Cs")}
    assert left == set("\t\n\r")
    assert pa.array([all_of_them])[0].as_py() == all_of_them
    assert json.loads(json.dumps(all_of_them, ensure_ascii=False).encode()) == all_of_them
    database = sqlite3.connect(":memory:")
    assert database.execute("SELECT ?", (all_of_them,)).fetchone() == (all_of_them,)


def test_parts_put_together_are_the_whole():
    random.seed(0)
    pieces = [random.choice([*ORDINARY, *HOSTILE]) for _ in range(200)]
    assert "".join(map(harmless, pieces)) == harmless("".join(pieces))


def test_a_message_is_one_line_and_short():
    assert one_line("a\tb\r\nc\u2028d\x1b") == r"a\tb\r\nc\u2028d\x1b"
    assert one_line("x" * 1000) == "x" * 1000
    assert one_line("x" * 1001) == "x" * 1000 + "... (1 more characters)"
    assert one_line("x" * 1_000_000, 10) == "xxxxxxxxxx... (999990 more characters)"
    assert one_line("\n" * 9, 10) == r"\n\n\n\n\n... (1 more characters)"
    assert len(one_line("\ud800\x1b" * 1_000_000)) < 1050


@pytest.mark.parametrize("name", ["", "run 1", "größe_数学", "👩", "a/b"])
def test_a_name_that_can_be_seen(name):
    assert hidden_character(name) is None


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("a\u200b", "U+200B (ZERO WIDTH SPACE)"),
        ("a\u00adb", "U+00AD (SOFT HYPHEN)"),
        ("\ufeffa", "U+FEFF (ZERO WIDTH NO-BREAK SPACE)"),
        ("a\u3164\u200b", "U+3164 (HANGUL FILLER)"),
        ("a\ufe0f", "U+FE0F (VARIATION SELECTOR-16)"),
        ("a\u00a0", "U+00A0 (NO-BREAK SPACE)"),
        ("a\U000e0041", "U+E0041 (TAG LATIN CAPITAL LETTER A)"),
        ("\n", "U+000A (without a name)"),
        ("\ud800", "U+D800 (without a name)"),
    ],
)
def test_the_first_character_of_a_name_that_cannot_be_seen(name, hidden):
    assert hidden_character(name) == hidden
