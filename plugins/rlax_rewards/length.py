"""The reward ``length``, a penalty for long completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

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
        "`buffer` of `max`; linear: -cost for each one beyond `free`, at least -most",
    )
    unit: Literal["tokens", "characters"] = Field(
        "tokens", description="unit of the length: sampled tokens, or characters of the text"
    )
    max: PositiveInt | None = Field(
        None,
        description="L_max of overlong: length from which the penalty is 1; null: what an episode "
        "may sample, which is rlax.rollouts.max_new_tokens with one turn",
    )
    buffer: PositiveInt | None = Field(
        None,
        description="L_cache of overlong: length before `max` over which the penalty grows; null: "
        "a fifth of `max`",
    )
    cost: Annotated[float, Field(ge=0)] = Field(0.001, description="of linear, for each one")
    free: NonNegativeInt = Field(0, description="length that costs nothing with linear")
    most: Annotated[float, Field(ge=0)] = Field(1.0, description="largest penalty of linear")

    @model_validator(mode="after")
    def _fits(self) -> LengthConfig:
        if self.unit == "characters" and self.shape == "overlong" and self.max is None:
            raise ConfigError("max", None, "must be given with unit: characters")
        if self.max and self.buffer and self.buffer > self.max:
            raise ConfigError("buffer", self.buffer, f"must not exceed max = {self.max}")
        return self


class _Penalty:
    """The penalty of a length.

    ``overlong`` is eq. 13 of DAPO, https://arxiv.org/abs/2503.14476, for a length y:

    - 0                                     where y <= L_max - L_cache
    - ((L_max - L_cache) - y) / L_cache     where L_max - L_cache < y <= L_max
    - -1                                    where L_max < y

    ``linear`` is -min(most, cost * max(0, y - free)).
    """

    def __init__(self, config: LengthConfig, longest: int):
        self._config, self._max = config, config.max or longest
        self._buffer = config.buffer or max(1, self._max // 5)
        if self._buffer > self._max:
            raise ConfigError("buffer", self._buffer, f"must not exceed max = {self._max}")

    def of(self, length: int) -> float:
        config = self._config
        if config.shape == "linear":
            return 0.0 - min(config.most, config.cost * max(0, length - config.free))
        beyond = length - (self._max - self._buffer)
        return 0.0 - min(1.0, max(0, beyond) / self._buffer)


class TokenLength:
    """The penalty for the tokens that the policy sampled in all turns, including stop tokens."""

    def __init__(self, penalty: _Penalty):
        self._penalty = penalty

    def score(self, prompt: Prompt, episode: Episode) -> float:
        return self._penalty.of(episode.tokens)


class CharacterLength:
    """The penalty for the characters of the text that rewards read."""

    def __init__(self, penalty: _Penalty):
        self._penalty = penalty

    def __call__(self, prompt: Prompt, completion: str) -> float:
        return self._penalty.of(len(completion))


def build_length(config: LengthConfig, context: BuildContext) -> Any:
    """Returns the reward that counts the config's unit."""
    penalty = _Penalty(config, context.section.sampled_tokens)
    return TokenLength(penalty) if config.unit == "tokens" else CharacterLength(penalty)
