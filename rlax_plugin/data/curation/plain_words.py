"""The words of a text, normalised so that copies of one problem compare equal."""

from __future__ import annotations

import re
import unicodedata

# An operator counts as a word, because 2 + 3 and 2 x 3 are two problems. A hyphen, a star and a
# slash are also punctuation: they count before a number or a bracket. Scripts without spaces are
# read character by character.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]"
    r"|[0-9]+(?:[.,][0-9]+)*"
    r"|(?:(?![\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f])[^\W0-9_])+"
    r"|[-*/](?= {0,3}[0-9(])"
    r"|[+=<>^%\u00b1\u00d7\u00f7\u2200-\u22ff]"
)
_ASCII_WORD = re.compile(r"[0-9]+(?:[.,][0-9]+)*|[a-z]+|[-*/](?= {0,3}[0-9(])|[+=<>^%]")
# Shown as nothing: a copy may have them anywhere.
_INVISIBLE = dict.fromkeys(
    (0xAD, 0x34F, 0x61C, 0x180E, 0xFEFF, *range(0x200B, 0x2010), *range(0x2028, 0x202F),
     *range(0x2060, 0x2070), *range(0xFE00, 0xFE10), *range(0xE0000, 0xE0080))
)  # fmt: skip
_DASHES: dict[int, str] = dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2014, 0x2212), "-")


def words_of(text: str) -> list[str]:
    """Returns the words, numbers and operators of a text, in order.

    Case, white space, punctuation, invisible characters, and Unicode variants of a character (NFKC)
    make no difference. Letters of two scripts that merely look alike stay different.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    plain = unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).casefold()
    # Once more: folding may have made characters that NFKC writes otherwise.
    plain = unicodedata.normalize("NFKC", plain).translate(_DASHES)
    return _WORD.findall(plain)
