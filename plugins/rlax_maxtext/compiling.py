"""Compiles the trainer's program for ``rlax check --compile``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlax_maxtext.config_agreement import check_rows, check_shapes, given_config
from rlax_maxtext.options import TrainerOptions
from rlax_plugin.api import (
    BuildContext,
    CompiledProgram,
    CompileTarget,
    resolve,
)


def compile_programs(
    options: TrainerOptions, context: BuildContext, target: CompileTarget
) -> Iterator[CompiledProgram]:
    """Compiles one update with the objective, the signals' arrays and the batch of the config.

    Raises:
      ConfigError: MaxText's keys do not suit the section or the number of chips.
      OverrideError: MaxText is not a tested version.
    """
    from maxtext_overrides.compiling import topology

    topology.prepare()
    import jax

    from maxtext_overrides.compiling.train_step import compile_train_step
    from maxtext_overrides.config.loading import load, passed_on
    from rlax_maxtext.batch_signals import Training, signals_of
    from rlax_maxtext.checking import kept_copies

    jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # as a trainer does
    given, slots = given_config(context), resolve(context.section, context.part)
    with passed_on(given):
        config = load(given, **topology.keys(target.topology))
        check_rows(config, context.section, options.demonstrations.added_rows)
        check_shapes(config, context.section)
        signals = signals_of(context, slots, dict)
        slots = replace(slots, steps=config.steps // context.section.objective.updates_per_step)
        parts = config.gradient_accumulation_steps
        training = Training(
            context.section, slots, signals, parts=parts, mixed=options.demonstrations
        )
        target.progress("train step")
        yield compile_train_step(
            config,
            update_arrays=training.update_arrays,
            **training.of_loop,
            copies=kept_copies(slots, context.section),
            rounds=context.section.weights.rounded,
        )
