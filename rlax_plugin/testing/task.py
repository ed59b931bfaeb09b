"""Prompt source ``numbers`` and reward ``even``: a task that a bigram model learns in ten steps."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.types import Prompt
from rlax_plugin.config import NoOptions, Section
from rlax_plugin.ports.protocols import BuildContext, PromptSource, Reward

PAD, STOP = 0, 1
# Token t >= 2 is the (t - 2)-th of these characters, so a token is even if its digit is.
CHARACTERS = string.digits + string.ascii_letters
VOCABULARY = 2 + len(CHARACTERS)  # 64

_FIRST = {"train": 0, "validation": 1000, "test": 2000}


def encode(text: str) -> np.ndarray:
    """int32 tokens, one per character.

    Raises:
      ValueError: a character is neither a digit nor an ASCII letter.
    """
    return np.array([2 + CHARACTERS.index(c) for c in text], dtype=np.int32)


def decode(tokens: np.ndarray) -> str:
    """The characters of tokens; padding and stop tokens are omitted."""
    return "".join(CHARACTERS[t - 2] for t in tokens if t not in (PAD, STOP))


def check_vocabulary(context: BuildContext) -> None:
    """Rejects prompts with tokens that the toy policy has no weights for.

    Raises:
      ConfigError: a token of a training prompt, or a stop token, is not below ``VOCABULARY``.
    """
    choice, key = context.section.prompt_source, "rlax.prompt_source"
    source: PromptSource = context.part("prompt_source", choice, key)
    if (tokenizer := source.tokenizer) is not None:
        largest = [tokenizer.size - 1]
    else:
        largest = [int(p.tokens.max()) for p in source.prompts("train") if len(p.tokens)]
    if (token := max([*largest, *source.stop_ids], default=0)) >= VOCABULARY:
        reason = f"has the token {token}, but the toy policy only has tokens below {VOCABULARY}"
        raise ConfigError(f"{key}.name", choice.name, reason)


class NumbersConfig(Section):
    """Prompts that are numbers, one token per digit."""

    count: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=64, description="number of prompts in each split"
    )


class Numbers(PromptSource):
    """The numbers from 0 (train), 1000 (validation) and 2000 (test) on, one token per digit."""

    def __init__(self, config: NumbersConfig):
        self._count = config.count

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (STOP,)

    def prompts(self, split: str) -> Sequence[Prompt]:
        if split not in _FIRST:
            reason = f"no such split; {alternatives(split, _FIRST)}"
            raise ConfigError("split of rlax.prompt_source", split, reason)
        first = _FIRST[split]
        texts = map(str, range(first, first + self._count))
        return [
            Prompt(hashlib.sha256(text.encode()).hexdigest()[:16], encode(text), text, text)
            for text in texts
        ]

    def decode(self, tokens: np.ndarray) -> str:
        return decode(tokens)

    def encode(self, text: str) -> list[int]:
        return encode(text).tolist()

    def answer_tokens(self, prompt: Prompt) -> np.ndarray:
        """Returns a completion that ``Even`` rewards."""
        return np.append(encode("0"), np.int32(STOP))

    encode_given = encode


class EvenConfig(NoOptions):
    """1 if the id of the completion's first token is even, else 0."""


class Even(Reward):
    """1.0 if the completion's first character is an even token, else 0.0, also without one."""

    def __call__(self, prompt: Prompt, completion: str) -> float:
        first = completion[:1]
        return float(bool(first) and first in CHARACTERS and int(encode(first)[0]) % 2 == 0)
