"""Compiles a worker's programs for ``rlax check --compile``."""

from __future__ import annotations

from collections.abc import Iterator

from rlax_jetstream.options import JetstreamConfig
from rlax_plugin.api import BuildContext, CompiledProgram, CompileTarget


def compile_programs(
    options: JetstreamConfig, context: BuildContext, target: CompileTarget
) -> Iterator[CompiledProgram]:
    """Compiles the largest prefill and the decode loop of a worker with these chips.

    Raises:
      ConfigError: the slots do not divide among the chips, or MaxText rejects the config.
      OverrideError: MaxText is not a tested version.
    """
    from maxtext_overrides.compiling import topology

    topology.prepare()
    from maxtext_overrides.config.loading import load, passed_on
    from maxtext_overrides.upstream.lean_imports import unavailable

    # Without TensorFlow the import takes half as long, as in a worker.
    with unavailable("tensorflow", "google.cloud.aiplatform"):
        from maxtext_overrides.compiling.worker import compile_worker
        from maxtext_overrides.sampler.decode import FASTEST_LAYOUT
    from maxtext_overrides.worker_slots import check_slots, given_config, sizes

    given, rollouts = given_config(context), context.section.rollouts
    untested = context.section.trainer.options.get("allow_untested") is True
    with passed_on(given):
        devices = topology.devices(target.topology, untested)
        check_slots(rollouts, len(devices))
        keys = topology.keys(target.topology)
        limits = sizes(context, options, len(devices), hardware=keys["hardware"])
        config = load(given, **FASTEST_LAYOUT | limits | options.maxtext | keys)
        yield from compile_worker(
            config,
            devices,
            target.progress,
            group_size=rollouts.group_size,
            prompt_tokens=rollouts.max_prompt_tokens,
            rounds=context.section.weights.rounded,
            quantizes=options.quantization is not None,
        )
