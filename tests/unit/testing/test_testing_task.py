"""Prompts, text and rewards of the test task, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlax_plugin.base.types import Prompt
from rlax_plugin.testing.task import (
    CHARACTERS,
    VOCABULARY,
    Even,
    Numbers,
    NumbersConfig,
    decode,
    encode,
)


def test_text_and_tokens() -> None:
    assert VOCABULARY == 64
    assert encode("09aZ").tolist() == [2, 11, 12, 63]
    assert decode(encode(CHARACTERS)) == CHARACTERS
    assert decode(np.array([0, 12, 1])) == "a"  # neither padding nor stop has a character
    with pytest.raises(ValueError):
        encode("?")


def test_prompts_are_numbers_with_the_same_ids_everywhere() -> None:
    source = Numbers(NumbersConfig(count=20))
    train, test = source.prompts("train"), source.prompts("test")
    assert [p.text for p in train[:3]] == ["0", "1", "2"] and len(train) == 20
    assert test[0].text == "2000" and test[0].tokens.tolist() == [4, 2, 2, 2]
    assert train[5].id == Numbers(NumbersConfig()).prompts("train")[5].id
    ids = {p.id for split in ("train", "validation", "test") for p in source.prompts(split)}
    assert len(ids) == 60


def prompt(text: str) -> Prompt:
    return Prompt(text, encode(text), text, text)


def test_the_reward_looks_at_the_first_token() -> None:
    even = Even()
    # "0" is token 2, "1" is token 3, "a" is token 12.
    assert [even(prompt("7"), c) for c in ("0", "1", "01", "10", "a", "")] == [1, 0, 1, 0, 1, 0]
