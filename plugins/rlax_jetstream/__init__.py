"""Rollout engine ``jetstream``: MaxEngine's model with continuous batching and JetStream's API."""

from __future__ import annotations

from rlax_jetstream.compiling import compile_programs
from rlax_jetstream.options import JetstreamConfig
from rlax_plugin.api import BuildContext, CheckResult, Extension, RolloutEngine, hookimpl


def _build(config: JetstreamConfig, context: BuildContext) -> RolloutEngine:
    from rlax_jetstream.engine import JetstreamEngine

    def make_slots():
        # Importing MaxText takes 12 s; the engine calls this on its own thread.
        from maxtext_overrides.sampler.worker_slots import make_slots

        return make_slots(config, context)

    return JetstreamEngine.of(config, context, make_slots)


def _check(config: JetstreamConfig, context: BuildContext) -> CheckResult:
    from maxtext_overrides.sampler.worker_slots import check

    return check(config, context)


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    engine = Extension(JetstreamConfig, _build, _check, needs_model=True, compile=compile_programs)
    return {"jetstream": engine}
