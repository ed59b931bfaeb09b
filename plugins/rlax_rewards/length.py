"""The reward ``length``, a penalty for long completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    Episode,
    NonNegativeInt,
    PositiveInt,
    Prompt,
    Section,
)


class LengthConfig(Section):
    """A penalty for long completions: 0 or negative."""

    shape: Literal["overlong", "linear"] = Field(
        "overlong",
        description="overlong: DAPO's soft overlong punishment, from 0 to -1 over the last "
        "`buffer` tokens of `max`; linear: -cost for each token beyond `free`, at least -most",
    )
    max: PositiveInt | None = Field(
        None,
        description="L_max of overlong: tokens from which the penalty is 1; null: what an episode "
        "may sample, which is rlax.rollouts.max_new_tokens with one turn",
    )
    buffer: PositiveInt | None = Field(
        None,
        description="L_cache of overlong: tokens before `max` over which the penalty grows; null: "
        "a fifth of `max`",
    )
    cost: Annotated[float, Field(ge=0)] = Field(0.001, description="of linear, for each token")
    free: NonNegativeInt = Field(0, description="tokens that cost nothing with linear")
    most: Annotated[float, Field(ge=0)] = Field(1.0, description="largest penalty of linear")

    def check_together(self) -> None:
        if self.max and self.buffer and self.buffer > self.max:
            raise ConfigError("buffer", self.buffer, f"must not exceed max = {self.max}")


class Length:
    """The penalty for the tokens that the policy sampled in all turns, including stop tokens.

    ``overlong`` is eq. 13 of DAPO, https://arxiv.org/abs/2503.14476, for a length y:

    - 0                                     where y <= L_max - L_cache
    - ((L_max - L_cache) - y) / L_cache     where L_max - L_cache < y <= L_max
    - -1                                    where L_max < y

    ``linear`` is -min(most, cost * max(0, y - free)).
    """

    def __init__(self, config: LengthConfig, context: BuildContext):
        self._config, self._max = config, config.max or context.section.sampled_tokens
        self._buffer = config.buffer or max(1, self._max // 5)
        if self._buffer > self._max:
            raise ConfigError("buffer", self._buffer, f"must not exceed max = {self._max}")

    def score(self, prompt: Prompt, episode: Episode) -> float:
        config = self._config
        if config.shape == "linear":
            return 0.0 - min(config.most, config.cost * max(0, episode.tokens - config.free))
        beyond = episode.tokens - (self._max - self._buffer)
        return 0.0 - min(1.0, max(0, beyond) / self._buffer)
