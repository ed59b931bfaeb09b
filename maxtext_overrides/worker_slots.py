"""Makes the slots of a worker from the run's config. Imports JAX and MaxText."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from maxtext_overrides.config.loading import Config, default_of, load, load_to_check, passed_on
from maxtext_overrides.sampler import buckets
from maxtext_overrides.upstream.lean_imports import unavailable
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import RlaxSection, Rollouts
from rlax_plugin.config.identity import is_local
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.protocols import BuildContext, CheckResult
from rlax_plugin.rollout.batching.decode_engine import DecodeSlots
from rlax_plugin.rollout.batching.slots_engine import SlotsConfig

if TYPE_CHECKING:
    from maxtext_overrides.config.copies import Held


def make_slots(config: SlotsConfig, context: BuildContext, **more: Any) -> DecodeSlots:
    """Builds the decode engine on this process's own devices, without loading or compiling yet.

    Args:
      more: further arguments of ``DecodeEngine``.

    Raises:
      ConfigError: the slots do not divide among the devices, the mesh has another number of
        devices, or MaxText rejects the config.
      OverrideError: MaxText is not a tested version.
    """
    with lean():
        from maxtext_overrides.sampler.decode import DecodeEngine

    section = context.section
    return DecodeEngine(
        worker_config(config, context),
        group_size=section.rollouts.group_size,
        prompt_tokens=section.rollouts.max_prompt_tokens,
        keeps=config.keep_contexts and section.several_turns and not section.deterministic,
        rounds=section.weights.rounded,
        devices=jax.local_devices(),
        **more,
    )


def lean() -> AbstractContextManager[None]:
    """Within it MaxEngine is imported: without TensorFlow, its reader of data, in half the time."""
    return unavailable("tensorflow", "google.cloud.aiplatform")


def worker_config(
    config: SlotsConfig, context: BuildContext, of: ResolvedConfig | None = None
) -> Config:
    """Returns MaxText's config of a worker with this process's devices.

    Args:
      of: another run, whose model is run beside that of the worker's own run: in the same slots, on
        the same mesh. None: the worker's own.

    Raises:
      ConfigError: see ``make_slots``.
    """
    with lean():
        from maxtext_overrides.sampler.maxengine_model import FASTEST_LAYOUT

    own, devices = given_config(context), jax.local_device_count()
    check_slots(context.section.rollouts, devices)
    overrides = FASTEST_LAYOUT | sizes(context, config, devices) | config.maxtext
    if jax.process_count() > 1:  # MaxText would count the devices of the trainer's other hosts
        counted = {"internal_compile": True, "internal_compile_num_devices": devices}
        overrides |= {**counted, "num_slices": 1}
    check_mesh({**own.maxtext, **overrides}, devices)
    if of is None:
        return load(own, **overrides)
    keys = {key: value for key, value in of.maxtext.items() if not is_local(key)}
    keys |= {key: value for key, value in own.maxtext.items() if is_local(key)}
    return load(replace(of, maxtext=keys), **overrides)


def check_mesh(keys: Mapping[str, Any], devices: int) -> None:
    """Compares the mesh of MaxText's keys, which may be meant for the trainer, with the devices.

    Raises:
      ConfigError: the mesh has another number of devices.
    """
    default = {"ici_fsdp_parallelism": -1}  # MaxText's: all devices that are left
    sizes = default | {key: value for key, value in keys.items() if key.startswith("ici_")}
    if -1 in sizes.values() or (needed := math.prod(sizes.values())) == devices:
        return
    key = max(sizes, key=lambda name: sizes[name])
    mesh = ", ".join(f"{name}={size}" for name, size in sorted(sizes.items()) if size != 1)
    raise ConfigError(
        key,
        sizes[key],
        f"makes a mesh of {needed} devices ({mesh}), and this worker has {devices}. Set the mesh "
        "of workers by arguments of rlax serve, or in rlax.rollouts.engine.maxtext",
    )


def check(config: SlotsConfig, context: BuildContext, quantizes: bool = False) -> CheckResult:
    """Validates MaxText's keys as a worker has them, and adds up the memory it needs.

    Args:
      quantizes: see ``MaxEngineModel``.

    Raises:
      ConfigError: MaxText rejects the config.
    """
    given = given_config(context)
    with passed_on(given):
        overrides = sizes(context, config, 1) | config.maxtext
        worker, tokens = load_to_check(given, **overrides), _prefill_tokens(context.section)
        from maxtext_overrides.config import memory

        reach = buckets.copied(int(worker.max_prefill_predict_length))
        rounds = context.section.weights.rounded
        needed = memory.of_decoding(worker, reach, rounds, quantizes)
    slots = context.section.rollouts.slots
    parts = {
        "weights": needed.weights,
        "new weights, while they are loaded": needed.new,
        f"key-value caches of {slots} slots": needed.caches,
        "copy of the part of these that short prompts fill": needed.near,
        f"copy of the weights in {worker.dtype}, for arithmetic": needed.laid_out,
    }
    found = {what + _copies(part): part.nbytes for what, part in parts.items() if part.nbytes}
    if needed.parts:
        found["parts of the caches, for the decode loop"] = needed.parts
    longest, warnings = int(worker.max_prefill_predict_length), []
    if longest > 1.1 * tokens:
        reason = f"makes prefills and caches of {tokens} tokens, for which the attention kernel of "
        reason += f"TPUs needs {longest}: so many can be used for the same memory"
        warnings.append(("rlax.rollouts.max_prompt_tokens", reason))
    return CheckResult(
        memory=found,
        warnings=tuple(warnings),
        weights_bytes=needed.version,
        silent_tokens=config.longest_call(context.section.rollouts),
    )


def _copies(part: Held) -> str:
    """Words on the copies of arrays that a worker's devices hold."""
    if part.copies is not None:
        return f", {part.copies} copies" if part.copies > 1 else ""
    shared = part.devices_of_copy
    return f", a copy for every {f'{shared} devices' if shared > 1 else 'device'}"


def check_slots(rollouts: Rollouts, devices: int) -> None:
    """Checks that the slots divide among the devices.

    Raises:
      ConfigError: they do not.
    """
    if rollouts.slots % devices:
        raise ConfigError(
            "rlax.rollouts.slots", rollouts.slots, f"must be a multiple of the {devices} devices"
        )


def given_config(context: BuildContext) -> ResolvedConfig:
    """The resolved config, whose keys are passed to MaxText.

    Raises:
      ConfigError: there is only a section.
    """
    if context.config is None:
        raise ConfigError("rlax.rollouts.engine", None, "needs a MaxText config")
    return context.config


def sizes(
    context: BuildContext, config: SlotsConfig, devices: int, hardware: str | None = None
) -> dict[str, Any]:
    """MaxText's keys of a worker for the number of sequences and their length.

    Args:
      hardware: that of the devices; None: as the config says.
    """
    rollouts, prefill = context.section.rollouts, _prefill_tokens(context.section)
    keys = {**given_config(context).maxtext, **config.maxtext}
    if hardware is not None:
        keys["hardware"] = hardware
    prefill = buckets.fitting(prefill, lambda key: keys.get(key, default_of(key)))
    return {
        "per_device_batch_size": rollouts.slots // devices,
        "max_prefill_predict_length": prefill,
        "max_target_length": prefill + rollouts.max_new_tokens,
        "enable_checkpointing": False,
        "async_checkpointing": False,
        "enable_goodput_recording": False,
        "monitor_goodput": False,
        "gradient_accumulation_steps": 1,
    }


def _prefill_tokens(section: RlaxSection) -> int:
    """Returns the most tokens that a prefill may hold."""
    prefill = section.max_context_tokens
    if section.rollouts.on_new_weights == "continue":
        # A sample goes on behind all its tokens but the last by a prefill, and what follows is
        # written to the ring as ever. That costs max_new_tokens - 1 more cache entries per slot,
        # and every decode step's attention reads them: with completions much longer than prompts
        # nearly twice the cache and its traffic.
        prefill += section.rollouts.max_new_tokens - 1
    return prefill
