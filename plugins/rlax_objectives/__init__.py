"""Objective plug-in: the slots of the unified objective, and the published algorithms as presets.

``rlax_plugin.training.objective.loss`` computes the sum that uses the slots. Importing this package
does not import JAX: a slot does when it is traced.

Notation, here and in ``presets.yml``: r = pi_theta / pi_old; mu the behaviour policy; A the
advantage; len the trained tokens of a sequence; N the number of sequences; G that of samples in a
group; sg a stop-gradient. Formulas are to be maximised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlax_objectives import advantages, aggregations, corrections, terms, turns, weights
from rlax_plugin.api import Extension, NoOptions, Section, hookimpl, per_group, presets_from_yaml

PRESETS = Path(__file__).with_name("presets.yml")
LIBRARIES = Path(__file__).with_name("libraries.yml")


def _function(part: Any) -> Extension:
    return Extension(NoOptions, lambda config, context: part)


def _with_options(config_class: type[Section]) -> Extension:
    """Returns the extension of a config class whose instances are the part."""
    return Extension(config_class, lambda config, context: config)


@hookimpl
def rlax_register_aggregation() -> dict[str, Extension]:
    return {
        "sequence_mean": _with_options(aggregations.SequenceMean),
        "token_mean": _with_options(aggregations.TokenMean),
        "constant_length": Extension(
            aggregations.ConstantLength, aggregations.build_constant_length
        ),
        "sequence_sum": _with_options(aggregations.SequenceSum),
        "prompt_mean": _function(aggregations.prompt_mean),
    }


@hookimpl
def rlax_register_importance_weight() -> dict[str, Extension]:
    return {
        "one": _function(weights.one),
        "truncated": _with_options(weights.Truncated),
        "decoupled": _with_options(corrections.Decoupled),
        "ratio": _with_options(weights.PolicyRatio),
        "clipped": _with_options(weights.Clipped),
        "topr": _with_options(weights.Topr),
    }


@hookimpl
def rlax_register_correction() -> dict[str, Extension]:
    return {
        "truncated_importance_sampling": _with_options(corrections.TruncatedImportanceSampling),
        "icepop": _with_options(corrections.IcePop),
        "sequence_mask": _with_options(corrections.SequenceMask),
        "veto": _with_options(corrections.Veto),
    }


@hookimpl
def rlax_register_gradient_term() -> dict[str, Extension]:
    return {
        "clipped_ratio": _with_options(terms.ClippedRatio),
        "sequence_ratio": _with_options(terms.SequenceRatio),
        "sequence_ratio_token": _with_options(terms.SequenceRatioToken),
        "sigmoid_gate": _with_options(terms.SigmoidGate),
        "clipped_geometric_mean": _with_options(terms.ClippedGeometricMean),
        "trust_region": _with_options(terms.TrustRegion),
        "log_ratio_penalty": _with_options(terms.LogRatioPenalty),
        "log_prob": _function(terms.log_prob),
        "none": _function(terms.none),
    }


@hookimpl
def rlax_register_advantage() -> dict[str, Extension]:
    return {
        "group_normalised": _with_options(advantages.GroupNormalised),
        "leave_one_out": _with_options(advantages.LeaveOneOut),
        "length_weighted": _function(per_group(advantages.length_weighted)),
        "batch_normalised": _with_options(advantages.BatchNormalised),
        "gae": _with_options(advantages.Gae),
        "turn_normalised": _with_options(turns.TurnNormalised),
        "one": _with_options(advantages.One),
        "exponential": _with_options(advantages.Exponential),
    }


@hookimpl
def rlax_register_objective() -> dict[str, Extension]:
    return presets_from_yaml(PRESETS) | presets_from_yaml(LIBRARIES)
