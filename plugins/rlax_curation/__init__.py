"""Built-in samplers, which choose prompts, and filters, which reject groups."""

from __future__ import annotations

from rlax_curation.filters import MixedOutcome, MixedOutcomeConfig, Truncated, TruncatedConfig
from rlax_curation.greso import Greso, GresoConfig
from rlax_curation.learnability import Learnability, LearnabilityConfig
from rlax_curation.shuffled import Shuffled, ShuffledConfig
from rlax_plugin.api import Extension, hookimpl

__all__ = [
    "Greso",
    "GresoConfig",
    "Learnability",
    "LearnabilityConfig",
    "MixedOutcome",
    "MixedOutcomeConfig",
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
        "greso": Extension(GresoConfig, lambda config, context: Greso(config)),
    }


@hookimpl
def rlax_register_filter() -> dict[str, Extension]:
    return {
        "mixed_outcome": Extension(MixedOutcomeConfig, lambda config, context: MixedOutcome()),
        "truncated": Extension(TruncatedConfig, lambda config, context: Truncated(config)),
    }
