"""A benchmark task: random prompts of one exact length, and a reward that is never degenerate."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from rlax_plugin.api import (
    INT32_MAX,
    BuildContext,
    ConfigError,
    Extension,
    NoOptions,
    PositiveInt,
    Prompt,
    PromptSource,
    Reward,
    Section,
    alternatives,
    hookimpl,
)

SPLITS = ("train", "validation", "test")


class SyntheticConfig(Section):
    """Random prompts of a fixed length, for benchmarks."""

    prompt_tokens: PositiveInt = Field(16, description="length of every prompt, in tokens")
    vocab_size: Annotated[int, Field(ge=2, le=INT32_MAX)] = Field(
        512, description="token ids are sampled from 1 to vocab_size - 1; 0 is the padding id"
    )
    count: PositiveInt = Field(1024, description="number of prompts in each split")


class SyntheticSource(PromptSource):
    """Uniformly random token ids, the same in every process; the text is ids with spaces."""

    def __init__(self, config: SyntheticConfig):
        self._config = config

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Returns the prompts of a split; a small vocabulary may repeat some.

        Raises:
          ConfigError: there is no such split.
        """
        if split not in SPLITS:
            reason = f"no such split; {alternatives(split, SPLITS)}"
            raise ConfigError("split of rlax.prompt_source", split, reason)
        config = self._config
        rng = np.random.default_rng(SPLITS.index(split))
        tokens_bt = rng.integers(
            1, config.vocab_size, size=(config.count, config.prompt_tokens), dtype=np.int32
        )
        return tuple(self._prompt(tokens_t) for tokens_t in tokens_bt)

    def _prompt(self, tokens_t: np.ndarray) -> Prompt:
        text = self.decode(tokens_t)
        content = hashlib.blake2b(f"synthetic\n{text}".encode(), digest_size=16)
        return Prompt(id=content.hexdigest(), tokens=tokens_t.copy(), text=text, reference="")

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(map(str, np.asarray(tokens).tolist()))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return ()  # a benchmark's completions all have the same length


class TokenParityConfig(NoOptions):
    """1 if the sum of the completion's token ids is odd, else 0; for benchmarks."""


class TokenParity(Reward):
    """1.0 if the completion's ids have an odd sum, otherwise 0.0, also if it is not a list of ids.

    Whatever the model, about half of the samples of a prompt get each reward, so that a group has a
    gradient and is not filtered for equal rewards.
    """

    def __call__(self, prompt: Prompt, completion: str) -> float:
        ids = completion.split()
        if not all(one.isascii() and one.isdigit() for one in ids):
            return 0.0
        return float(sum(int(one[-1]) for one in ids) % 2)


def _build_source(config: SyntheticConfig, context: BuildContext) -> SyntheticSource:
    return SyntheticSource(config)


def _build_reward(config: TokenParityConfig, context: BuildContext) -> TokenParity:
    return TokenParity()


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"synthetic": Extension(SyntheticConfig, _build_source)}


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"token_parity": Extension(TokenParityConfig, _build_reward)}
