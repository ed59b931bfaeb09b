"""Makes text from outside harmless: of models, data sets, rewards, other plug-ins and workers.

Text is made harmless where it enters, so that whatever stores or shows it afterwards may trust it:
Arrow, JSON, SQLite, a terminal, an HTML page, a tracker, or a notebook. Little is lost: a removed
character becomes a visible escape such as ``\\x1b``, and the tokens that a model generated are
recorded beside their text.

Removed are control characters other than tab, newline and carriage return, among them all that
terminals obey; the bidirectional embeddings, overrides and isolates, which can make a line appear
different; and lone surrogates, which UTF-8 cannot encode, and which become U+FFFD. Letters of every
script, emoji and joiners stay unchanged.

Messages lose their secrets here as well, see ``base/text/secrets.py``.
"""

from __future__ import annotations

import re
import unicodedata

from rlax_plugin.base.text.secrets import hidden

LONGEST_MESSAGE = 1000
"""Characters that ``one_line`` keeps of a text unless told otherwise."""

_LONGEST_SECRET = 4096  # characters

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
# Of the characters that Python considers printable.
_WITHOUT_SHAPE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def harmless(text: str) -> str:
    """Returns a harmless text of any length and number of lines, as records store it.

    It works character by character: the results for two parts, joined, are the result for the
    whole.
    """
    # Nearly all text is harmless, and most of it is ASCII, where this is quicker than a search.
    if text.isascii():
        data = text.encode()
        if len(data.translate(None, _HARMFUL_ASCII)) == len(data):
            return text
    elif _HARMFUL.search(text) is None:
        return text
    return text.translate(_ESCAPES)


def in_line(text: str) -> str:
    """Returns a harmless text of any length, in one line."""
    return harmless(text).translate(_LINE_BREAKS)


def hidden_character(name: str) -> str | None:
    """Returns the first character of a name that cannot be seen; None if all can.

    With it, two names could look the same. These are control characters, formats such as the space
    of no width, spaces other than the usual one, and letters and marks without a shape.

    Returns:
      Its code point and name, such as ``U+200B (ZERO WIDTH SPACE)``.
    """
    if name.isascii() and name.isprintable():  # nearly always
        return None
    for one in name:
        if not one.isprintable() or _WITHOUT_SHAPE.fullmatch(one):
            return f"U+{ord(one):04X} ({unicodedata.name(one, 'without a name')})"
    return None


def one_line(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Returns a text for a message: harmless, in one line, at most ``longest`` characters of it.

    Secrets are hidden before the text is cut, as a part of one would not be recognised any more.
    """
    read = text[: 2 * longest + _LONGEST_SECRET]  # a worker may send megabytes
    line = in_line(hidden(read)[: longest + 1])
    if len(line) <= longest and len(read) == len(text):
        return line
    return f"{line[:longest]}... ({max(1, len(text) - longest)} more characters)"


def is_one_line(text: str, longest: int) -> bool:
    """True if a text can be a name or an id: harmless, in one line, and not too long."""
    return len(text) <= longest and in_line(text) == text


def storable(text: str) -> str:
    """Returns a text that every format can hold: without lone surrogates, otherwise unchanged.

    It is for data that must not be changed further, such as a prompt's reference, which has to be
    made ``harmless`` when it is shown.
    """
    if text.isascii() or _LONE_SURROGATE.search(text) is None:
        return text
    return _LONE_SURROGATE.sub("\ufffd", text)
