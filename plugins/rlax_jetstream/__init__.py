"""Rollout engine ``jetstream``: MaxEngine's model with continuous batching and JetStream's API."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    CheckResult,
    Extension,
    PositiveInt,
    RolloutEngine,
    Section,
    hookimpl,
)


class JetstreamConfig(Section):
    """Options of ``jetstream``."""

    arrival_steps: PositiveInt = Field(
        4, description="decode steps between looks for arrivals while slots are free"
    )
    linger_steps: Annotated[int, Field(ge=0, le=2)] = Field(
        2, description="decode steps a freed slot may wait for others, to be filled in one prefill"
    )
    interrupt_steps: PositiveInt = Field(
        32,
        description="decode steps between looks for new weights and reports of progress, with "
        "on_new_weights: continue or discard; and for calls of other programs that were cancelled",
    )
    warm_up: bool = Field(
        True,
        description="compile every program before the worker registers, at most ten prefills "
        "among them, so that no request has to wait for a compilation",
    )
    maxtext: dict[str, bool | int | float | str] = Field(
        {}, description="MaxText keys that workers set differently, e.g. their mesh"
    )


def _build(config: JetstreamConfig, context: BuildContext) -> RolloutEngine:
    from rlax_jetstream.engine import JetstreamEngine

    section = context.section
    store = context.part("weight_store", section.weights.store, "rlax.weights.store")

    def make_slots():
        # Importing MaxText takes 12 s; the engine calls this on its own thread.
        from rlax_jetstream.slots import make_slots

        return make_slots(config, context)

    return JetstreamEngine(
        make_slots=make_slots,
        store=store,
        rollouts=section.rollouts,
        config=config,
        make_prompt_source=lambda: context.part(
            "prompt_source", section.prompt_source, "rlax.prompt_source"
        ),
        deterministic=section.deterministic,
    )


def _check(config: JetstreamConfig, context: BuildContext) -> CheckResult:
    from rlax_jetstream.slots import check

    return check(config, context)


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    return {"jetstream": Extension(JetstreamConfig, _build, _check, needs_model=True)}
