"""Samples end at stop strings: exact in tokens, cut in text, and no slower where they are long."""

import random
from pathlib import Path

import numpy as np
import pytest
from small_tokenizers import byte_fallback, byte_level

from rlax_plugin.api import ConfigError, Tokenizer, completion_text, stop_strings_of
from rlax_plugin.base.tokens.stopping import StopFinder, cut, end_of

WORDS = (
    " the",
    "cat",
    "\n",
    "\n\n",
    ".\nQ",
    "é",
    "漢",
    "🙂",
    "</calc>",
    "<",
    "calc",
    ">",
    " ",
    "E",
)
STRINGS = ("\n", "</calc>", "é", "E\n", "🙂\n", "漢", "t t", "\n\n<", " cat")


@pytest.fixture(scope="module", params=[byte_level, byte_fallback])
def tokenizer(request, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = request.param(tmp_path_factory.mktemp("tokenizer"))
    return Tokenizer.load(directory, "tokenizer_path")


def portions(tokens: np.ndarray, sizes: random.Random) -> list[np.ndarray]:
    found, at = [], 0
    while at < len(tokens):
        size = sizes.choice((1, 2, 3, 8, 40))
        found.append(tokens[at : at + size])
        at += size
    return found


def by_definition(tokens: np.ndarray, strings: tuple[str, ...], tokenizer: Tokenizer) -> int | None:
    texts = (tokenizer.decode(tokens[: i + 1]) for i in range(len(tokens)))
    return next((i + 1 for i, text in enumerate(texts) if any(s in text for s in strings)), None)


def test_the_end_is_the_first_token_with_which_the_whole_text_has_a_stop_string(
    tokenizer: Tokenizer,
) -> None:
    rng, found = random.Random(0), 0
    for _ in range(600):
        tokens: list[int] = []
        for _ in range(rng.randrange(1, 25)):
            odd = rng.random() < 0.3  # any token: bytes that are no character, special tokens
            tokens += (
                [rng.randrange(tokenizer.size)] if odd else tokenizer.encode(rng.choice(WORDS))
            )
        ids, strings = np.array(tokens, np.int32), tuple(rng.sample(STRINGS, rng.randrange(1, 4)))
        expected = by_definition(ids, strings, tokenizer)
        found += expected is not None
        assert end_of(ids, strings, tokenizer.decode) == expected
        finder, ended, before = StopFinder(strings, tokenizer.decode), None, 0
        for portion in portions(ids, rng):
            if (place := finder.find(portion)) is not None:
                ended = before + place
                break
            before += len(portion)
        assert ended == expected, (tokens, strings)
    assert 150 < found < 550  # both kinds were tried


def test_a_string_that_ends_within_a_token_keeps_the_token_and_cuts_the_text(tmp_path) -> None:
    tokenizer = Tokenizer.load(byte_level(tmp_path), "tokenizer_path")
    (merged,) = tokenizer.encode(".\nQ")
    tokens = np.array([*tokenizer.encode("42"), merged, *tokenizer.encode("more")], np.int32)
    for strings in (("2.\n",), (".\n",), ("\n",), ("zzz", "\n")):
        assert end_of(tokens, strings, tokenizer.decode) == 3
    source = type("Source", (), {"decode": tokenizer.decode, "stop_strings": ("\n",)})
    assert completion_text(source, tokens[:3]) == "42."  # pyright: ignore[reportArgumentType]
    assert tokenizer.decode(tokens[:3]) == "42.\nQ"


def test_long_samples_decode_no_more_per_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(byte_level(tmp_path), "tokenizer_path")
    decoded: list[int] = []

    def decode(tokens: np.ndarray) -> str:
        decoded.append(len(tokens))
        return tokenizer.decode(tokens)

    for kind in ("text", "bytes that are no characters"):
        ids = tokenizer.encode("some words é " * 400) if kind == "text" else [200] * 4000
        per_token = []
        for length in (500, 4000):
            decoded.clear()
            finder = StopFinder(("\n\n\n",), decode)
            for at in range(0, length, 8):
                assert finder.find(np.array(ids[at : at + 8], np.int32)) is None
            per_token.append(sum(decoded) / length)
        assert per_token[1] < 1.2 * per_token[0], kind


def test_the_first_of_several_strings_cuts() -> None:
    assert cut("a;b\nc;", ("\n", ";")) == "a"
    assert cut("a;b", ("\n",)) == "a;b" and cut("\na", ("\n",)) == ""


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        (["\n"], "and must be a tuple of texts"),
        ("\n", "and must be a tuple of texts"),
        (("",), "it must have 1 to 256 characters"),
        (("x" * 257,), "it must have 1 to 256 characters"),
        (("a\ufffd",), "U\\+FFFD not among them"),
        (tuple("abcdefghi"), "9 stop strings, at most 8"),
    ],
)
def test_stop_strings_that_cannot_be_used_are_rejected(strings, message: str) -> None:
    source = type("Source", (), {"stop_strings": strings})()
    with pytest.raises(ConfigError, match=f"^rlax.prompt_source = 'Source': has .*{message}"):
        stop_strings_of(source)
