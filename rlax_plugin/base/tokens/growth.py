"""Bounds the memory that the steps of a tokenizer.json can make the library need.

The file is a program: forty replacements of ``a`` by ``aa`` make 2**40 characters of one. Where
memory is short, the Rust library ends the process, and no exception could be caught. So a file is
rejected if its steps could make a text more than ``MOST`` times as long. Those of published models
make it at most some tens of times as long, by a bound that assumes the worst text.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

MOST = 1000
"""The largest growth of a text, and the most characters or tokens that are added to any text."""

_MOST_STEPS = 1000
_PARTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
_BYTES = 4  # of a character at most; ByteLevel makes a character of each, and may add a space

_LOOKING = re.compile(r"\(\?[^:]|\\[bBAZzGK\d]|(?<!\[)\^|\$")  # at what is around a match
_CLASS = re.compile(r"\\[pP]\{\^?\w+\}")  # such as \p{L}, which Python does not have


def growth_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the faults of a tokenizer.json because of which it could need any amount of memory."""
    for part, inner in _PARTS.items():
        steps = list(itertools.islice(_steps(content.get(part), inner), _MOST_STEPS + 1))
        if len(steps) > _MOST_STEPS:
            yield f"has a {part} of more than {_MOST_STEPS} steps"
            continue
        for step in steps:
            size, data = _charsmap(step)
            if size > len(data):
                yield f"has a precompiled_charsmap of {len(data)} bytes that says it has {size}"
        growth = _growth_of_tokens(steps) if part == "post_processor" else _growth_of_text(steps)
        if growth > MOST:
            yield f"has a {part} that can make a text {growth:.3g} times as long: at most {MOST}"


def growth_faults_of_model(data: bytes) -> Iterator[str]:
    """Yields such faults of a file of SentencePiece, which is a message of protobuf."""
    for normalizer in _fields(data, 3):
        for charsmap in _fields(normalizer, 2):
            text = base64.b64encode(charsmap).decode()
            step = {"type": "Precompiled", "precompiled_charsmap": text}
            yield from growth_faults({"normalizer": step})


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yields the values of a field of bytes, up to where it is no message of protobuf."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if (kind := key & 7) == 2:
            size, start = _varint(message, place)
            place = start + size
            if key >> 3 == wanted:
                yield message[start:place]
        elif kind == 0:
            _, place = _varint(message, place)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            return


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Returns a number of at most ten bytes, and where it ends."""
    number = 0
    for shift, byte in enumerate(message[place : place + 10]):
        number |= (byte & 0x7F) << 7 * shift
        place += 1
        if byte < 0x80:
            break
    return number, place


def _steps(component: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a component that may consist of others, in order."""
    components = [component]
    while components:
        one = components.pop()
        if isinstance(one, dict):
            nested = one.get(inner)
            if isinstance(nested, list):
                components += reversed(nested)
            else:
                yield one


def _growth_of_text(steps: list[Mapping[str, Any]]) -> float:
    """Returns a bound of the growth, by what each character can become in the later steps."""
    sizes: dict[str, float] = {}  # of characters that are named in a step
    other, added = 1.0, 0.0  # the size of all others; what is put in front of any text

    def size(text: str) -> float:
        return sum(sizes.get(character, other) for character in text)

    for step in reversed(steps):
        times, more = 1.0, 0.0
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
                sizes[old[0]] = max(sizes.get(old[0], other), size(new))
            case {"type": "Replace", "pattern": pattern, "content": str(new)}:
                if _matches_nothing(pattern):  # perhaps between all characters
                    more = size(new)
                else:
                    other = max(other, size(new))
                    sizes = {key: max(value, other) for key, value in sizes.items()}
            case {"type": "Prepend", "prepend": str(text)}:
                added += size(text)
            case {"type": "BertNormalizer" | "BPEDecoder" | "CTC"}:  # spaces around characters
                more = size("  ")
            case {"type": "ByteLevel"}:
                times = _BYTES + 1
            case {"type": "Metaspace"}:
                times = 2
            case {"type": "Precompiled"}:
                start, data = _charsmap(step)
                times = max(1, *map(len, data[start:].split(b"\0")))
        if times > 1:  # of any character
            sizes, other = {}, times * max(other, *sizes.values(), 1)
        if more:
            sizes, other = {key: value + more for key, value in sizes.items()}, other + more
    return max(other, added, *sizes.values())


def _matches_nothing(pattern: Any) -> bool:
    """Returns False if a regular expression is certain to match at least one character.

    Where nothing in it looks at its surroundings, it matches nothing in all texts or in none.
    """
    match pattern:
        case {"Regex": str(expression)} if not _LOOKING.search(expression):
            with warnings.catch_warnings(), contextlib.suppress(re.error, RecursionError):
                warnings.simplefilter("ignore")
                return re.fullmatch(_CLASS.sub(r"\\w", expression), "") is not None
    return True  # or it is one that only Oniguruma understands


def _growth_of_tokens(steps: list[Mapping[str, Any]]) -> float:
    times, added = 1.0, 0.0
    for step in steps:
        special = step.get("special_tokens")
        tokens = {name: one.get("ids") for name, one in _items(special) if isinstance(one, dict)}
        template = step.get("single")
        ids = [_special_id(piece) for piece in template] if isinstance(template, list) else []
        times *= max(1, ids.count(None))
        added += sum(len(found) for i in ids if isinstance(found := tokens.get(i), list))
    return max(times, added)


def _special_id(piece: Any) -> str | None:
    """Returns the special token of a piece of a template; None if the piece is a text."""
    match piece:
        case {"SpecialToken": {"id": str(name)}}:
            return name
    return None


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    yield from value.items() if isinstance(value, dict) else ()


def _charsmap(step: Mapping[str, Any]) -> tuple[int, bytes]:
    """Returns where the texts of a charsmap begin, as it says itself, and the charsmap."""
    text = step.get("precompiled_charsmap")
    try:
        data = base64.b64decode(text) if isinstance(text, str) else b""
    except ValueError:
        data = b""  # the library says so
    return (4 + int.from_bytes(data[:4], "little") if len(data) >= 4 else 0), data
