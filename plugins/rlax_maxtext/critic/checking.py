"""Checks of critics before a run, and the memory that a critic needs."""

from __future__ import annotations

from rlax_maxtext.critic.options import CriticConfig, Learning, ValueHeadConfig
from rlax_maxtext.critic.signal import config_key
from rlax_maxtext.options import MIXED
from rlax_plugin.api import BuildContext, CheckResult, ConfigError, reads_values, resolve

_TRAINER = "maxtext"


def check_critic_start(config: CriticConfig, context: BuildContext) -> None:
    """See ``Extension``.

    Raises:
      ConfigError: the values would have no effect, the policy would never learn, a mini-batch would
        have no row, or there are several hosts.
    """
    _check_learning(config, context, config_key(context, "critic"))
    if context.hosts is not None and context.hosts.several:
        reason = "must be 1 with signal critic: value_head can learn on several hosts"
        raise ConfigError("--hosts", context.hosts.count, reason)


def check_head_start(config: ValueHeadConfig, context: BuildContext) -> None:
    """See ``Extension`` and ``check_critic_start``."""
    _check_learning(config, context, config_key(context, "value_head"))


def _check_learning(learning: Learning, context: BuildContext, key: str) -> None:
    section = context.section
    slots = resolve(section, context.part)
    if not reads_values(slots.advantages, section.rollouts.group_size):
        name = slots.algorithm.advantage.name if slots.algorithm.advantage else None
        reason = (
            "reads no values, so a critic has no effect: choose gae, as preset ppo does, or take "
            f"{key} out"
        )
        raise ConfigError("rlax.objective.advantage.name", name, reason)
    if learning.mini_batches > section.batch_rows:
        reason = f"must not exceed the {section.batch_rows} rows of a batch"
        raise ConfigError(f"{key}.mini_batches", learning.mini_batches, reason)
    mixed = section.trainer.plain_name == _TRAINER and section.trainer.options.get("demonstrations")
    if mixed and learning.warm_up_steps:
        reason = f"must be 0 with {MIXED}, which would be used up while the policy stays as it is"
        raise ConfigError(f"{key}.warm_up_steps", learning.warm_up_steps, reason)
    steps = context.maxtext.get("steps")
    if isinstance(steps, int) and learning.warm_up_steps >= steps // slots.updates_per_step > 0:
        reason = f"must be below the {steps // slots.updates_per_step} steps of the run"
        raise ConfigError(f"{key}.warm_up_steps", learning.warm_up_steps, reason)


def check_critic(config: CriticConfig, context: BuildContext) -> CheckResult | None:
    """Builds the critic's shapes, and adds up the memory that it needs beside the policy.

    Raises:
      ConfigError: MaxText rejects its keys, or it could not read the policy's batches.
    """
    if context.section.trainer.plain_name != _TRAINER or context.config is None:
        return None
    from maxtext_overrides.config import memory
    from maxtext_overrides.config.loading import load_to_check, passed_on
    from rlax_maxtext.critic.model_config import critic_config

    key = f"{config_key(context, 'critic')}.model"
    with passed_on(context.config):
        model = critic_config(context.config, config.model, key, load_to_check)
        needed = memory.of_critic(model)
    return CheckResult(
        says={
            "critic": f"{needed.parameters:,} parameters, started from {config.start}; "
            f"{config.epochs * config.mini_batches} update(s) per step, learning_rate "
            f"{config.optimizer.learning_rate:g}"
        },
        memory={
            "critic: parameters": needed.weights,
            "critic: optimizer state": 2 * needed.weights,
            "critic: gradients": needed.gradients,
            f"critic: inputs of {model.num_decoder_layers} layers, for the backward pass": (
                needed.layer_inputs
            ),
        },
    )
