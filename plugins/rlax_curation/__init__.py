"""Built-in samplers, which choose prompts, filters of groups, and selections of samples."""

from __future__ import annotations

from rlax_curation.band import BandSampler, BandSamplerConfig
from rlax_curation.filters import (
    BandConfig,
    DifficultyBand,
    MixedOutcome,
    MixedOutcomeConfig,
    Truncated,
    TruncatedConfig,
)
from rlax_curation.greso import Greso, GresoConfig
from rlax_curation.learnability import Learnability, LearnabilityConfig
from rlax_curation.shuffle_r1 import ShuffleR1, ShuffleR1Config
from rlax_curation.shuffle_r1 import check as _check_shuffle
from rlax_curation.shuffled import Shuffled, ShuffledConfig
from rlax_plugin.api import BuildContext, ConfigError, Extension, hookimpl

__all__ = [
    "BandConfig",
    "BandSampler",
    "BandSamplerConfig",
    "DifficultyBand",
    "Greso",
    "GresoConfig",
    "Learnability",
    "LearnabilityConfig",
    "MixedOutcome",
    "MixedOutcomeConfig",
    "ShuffleR1",
    "ShuffleR1Config",
    "Shuffled",
    "ShuffledConfig",
    "Truncated",
    "TruncatedConfig",
]


@hookimpl
def rlax_register_sampler() -> dict[str, Extension]:
    return {
        "shuffled": Extension(ShuffledConfig, lambda config, context: Shuffled()),
        "learnability": Extension(LearnabilityConfig, lambda config, context: Learnability(config)),
        "band": Extension(BandSamplerConfig, lambda config, context: BandSampler(config)),
        "greso": Extension(GresoConfig, lambda config, context: Greso(config)),
    }


@hookimpl
def rlax_register_filter() -> dict[str, Extension]:
    return {
        "mixed_outcome": Extension(MixedOutcomeConfig, lambda config, context: MixedOutcome()),
        "difficulty_band": Extension(BandConfig, _difficulty_band, check_start=_check_band),
        "truncated": Extension(TruncatedConfig, lambda config, context: Truncated(config)),
    }


@hookimpl
def rlax_register_selection() -> dict[str, Extension]:
    def build(config: ShuffleR1Config, context: BuildContext) -> ShuffleR1:
        return ShuffleR1(config)

    return {"shuffle_r1": Extension(ShuffleR1Config, build, check_start=_check_shuffle)}


def _difficulty_band(config: BandConfig, context: BuildContext) -> DifficultyBand:
    return DifficultyBand(config, context.section.curation.pass_threshold)


def _check_band(config: BandConfig, context: BuildContext) -> None:
    if context.section.objective.guidance is not None and config.low > 0:
        names = [choice.plain_name for choice in context.section.curation.filters]
        key = f"rlax.curation.filters.{names.index('difficulty_band')}.low"
        reason = "must be 0 with rlax.objective.guidance, as no sample of a guided group passes"
        raise ConfigError(key, config.low, reason)
