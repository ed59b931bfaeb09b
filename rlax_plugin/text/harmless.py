"""Text from outside made harmless: of models, data sets, rewards, other plug-ins and workers.

It is made harmless where it enters, so that whatever holds or shows it afterwards may trust it:
Arrow, JSON, SQLite, a terminal, an HTML page, a tracker, or somebody's notebook. What is lost is
little: a character that has to go becomes a visible escape such as ``\\x1b``, and the tokens that a
model generated are recorded beside their text.

What has to go are control characters other than tab, newline and carriage return, among them all
that terminals obey; the bidirectional embeddings, overrides and isolates, which make a line read
otherwise than it is; and lone surrogates, which no UTF-8 holds, and which become U+FFFD. Letters
of every script, emoji and what joins them stay as they are.

This module imports nothing of the project.
"""

from __future__ import annotations

import re

LONGEST_MESSAGE = 1000
"""Characters that ``one_line`` keeps of a text unless told otherwise."""

_ORDINARY = {ord(c) for c in "\t\n\r"}
_CONTROLS = ({*range(0x20), *range(0x7F, 0xA0)} - _ORDINARY) | {
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
}
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_ESCAPES = {code: _escape(code) for code in _CONTROLS} | _SURROGATES
_LINE_BREAKS = {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"} | {
    code: _escape(code) for code in (0x2028, 0x2029)
}
_HARMFUL = re.compile(f"[{''.join(map(re.escape, map(chr, sorted(_ESCAPES))))}]")
_HARMFUL_ASCII = bytes(code for code in sorted(_CONTROLS) if code < 0x80)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def harmless(text: str) -> str:
    """A text of any length and any number of lines, as records hold it and rewards see it.

    Character by character: the texts of two parts, put together, are the text of the whole.
    """
    # Nearly all text is harmless, and most of it is ASCII, where this is quicker than a search.
    if text.isascii():
        data = text.encode()
        if len(data.translate(None, _HARMFUL_ASCII)) == len(data):
            return text
    elif _HARMFUL.search(text) is None:
        return text
    return text.translate(_ESCAPES)


def one_line(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """A text for a message: harmless, in one line, with ``longest`` characters at most kept."""
    line = harmless(text[: longest + 1]).translate(_LINE_BREAKS)
    if len(line) <= longest:
        return line
    return f"{line[:longest]}... ({max(1, len(text) - longest)} more characters)"


def storable(text: str) -> str:
    """The text as every format holds it: without lone surrogates, and otherwise unchanged.

    For data whose meaning is not ours to touch, such as a prompt's reference: whoever shows it
    makes it ``harmless``.
    """
    if text.isascii() or _LONE_SURROGATE.search(text) is None:
        return text
    return _LONE_SURROGATE.sub("\ufffd", text)
