"""Rollout engine ``jetstream``: MaxEngine's model with continuous batching and JetStream's API."""

from __future__ import annotations

from rlax_jetstream.compiling import compile_programs
from rlax_jetstream.options import JetstreamConfig
from rlax_plugin.api import (
    BuildContext,
    CheckResult,
    ConfigError,
    Extension,
    RolloutEngine,
    corrects_sampler,
    hookimpl,
    resolve,
)


def _check_start(config: JetstreamConfig, context: BuildContext) -> None:
    key, name = "rlax.rollouts.engine.quantization", config.quantization
    if there := config.maxtext.get("quantization"):
        reason = (
            "must not be set: MaxEngine would keep the matrices as they are, and round them and "
            f"the activations in each forward pass. Set {key}: int8, for 8 bits in memory"
        )
        raise ConfigError("rlax.rollouts.engine.maxtext.quantization", there, reason)
    if name is None:
        return
    # Those of a base file or of model_name are checked with MaxText's config (``int8_weights``).
    keys = {**context.maxtext, **config.maxtext}
    if there := keys.get("quantization"):
        raise ConfigError("quantization", there, f"must be empty with {key}: {name}")
    if isinstance(experts := keys.get("num_experts"), int) and experts > 1:
        reason = f"must be null with num_experts = {experts}: experts stay as they are"
        raise ConfigError(key, name, reason)
    section = context.section
    if section.trains_on_log or section.objective.allow_uncorrected:
        return
    if not corrects_sampler(resolve(section, context.part)):
        reason = (
            "needs an objective that corrects for another policy, which the quantised one is: set "
            "rlax.objective.old_policy: proximal with corrections: [{name: "
            "truncated_importance_sampling}] or [{name: icepop}], or use preset aipo; "
            "rlax.objective.allow_uncorrected: true switches this check off, also for rlax eval, "
            "where nothing is trained"
        )
        raise ConfigError(key, name, reason)


def _build(config: JetstreamConfig, context: BuildContext) -> RolloutEngine:
    from rlax_jetstream.engine import JetstreamEngine

    _check_start(config, context)  # a worker may have MaxText keys that the run's config lacks

    def make_slots():
        # Importing MaxText takes 12 s; the engine calls this on its own thread.
        from maxtext_overrides.worker_slots import make_slots

        return make_slots(config, context, quantizes=config.quantization is not None)

    return JetstreamEngine.of(config, context, make_slots)


def _check(config: JetstreamConfig, context: BuildContext) -> CheckResult:
    from maxtext_overrides.worker_slots import check

    return check(config, context, quantizes=config.quantization is not None)


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    engine = Extension(
        JetstreamConfig,
        _build,
        _check,
        needs_model=True,
        check_start=_check_start,
        compile=compile_programs,
    )
    return {"jetstream": engine}
