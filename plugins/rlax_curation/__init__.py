"""Built-in samplers, which choose prompts, and filters, which reject groups."""

from __future__ import annotations

from rlax_curation.band import BandSampler, BandSamplerConfig
from rlax_curation.distinct import Distinct, DistinctConfig
from rlax_curation.epochs import domains_of
from rlax_curation.greso import Greso, GresoConfig
from rlax_curation.learnability import Learnability, LearnabilityConfig
from rlax_curation.outcomes import BandConfig, DifficultyBand, MixedOutcome, MixedOutcomeConfig
from rlax_curation.repetition import Repetition, RepetitionConfig
from rlax_curation.shuffled import Shuffled, ShuffledConfig
from rlax_curation.truncated import Truncated, TruncatedConfig
from rlax_plugin.api import BuildContext, Extension, hookimpl

__all__ = [
    "BandConfig",
    "BandSampler",
    "BandSamplerConfig",
    "DifficultyBand",
    "Distinct",
    "DistinctConfig",
    "Greso",
    "GresoConfig",
    "Learnability",
    "LearnabilityConfig",
    "MixedOutcome",
    "MixedOutcomeConfig",
    "Repetition",
    "RepetitionConfig",
    "Shuffled",
    "ShuffledConfig",
    "Truncated",
    "TruncatedConfig",
    "domains_of",
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
    def build_band(config: BandConfig, context: BuildContext) -> DifficultyBand:
        return DifficultyBand(config, context.section.curation.pass_threshold)

    return {
        "mixed_outcome": Extension(MixedOutcomeConfig, lambda config, context: MixedOutcome()),
        "difficulty_band": Extension(BandConfig, build_band),
        "distinct": Extension(DistinctConfig, lambda config, context: Distinct(config)),
        "truncated": Extension(TruncatedConfig, lambda config, context: Truncated(config)),
        "repetition": Extension(RepetitionConfig, lambda config, context: Repetition(config)),
    }
