"""Trainer ``maxtext``: MaxText's own training loop with the run's objective, and its signals."""

from __future__ import annotations

from rlax_maxtext.checking import check
from rlax_maxtext.compiling import compile_programs
from rlax_maxtext.critic.checking import check_critic, check_critic_start, check_head_start
from rlax_maxtext.critic.options import CriticConfig, ValueHeadConfig
from rlax_maxtext.critic.signal import Critic, ValueHead
from rlax_maxtext.options import TrainerOptions, check_start
from rlax_maxtext.policies import (
    OldPolicyConfig,
    ReferenceConfig,
    build_old_policy,
    build_reference,
    check_old_policy,
)
from rlax_maxtext.trainer import MaxTextTrainer
from rlax_plugin.api import Extension, hookimpl


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    trainer = Extension(
        TrainerOptions,
        MaxTextTrainer,
        check,
        needs_model=True,
        check_start=check_start,
        compile=compile_programs,
    )
    return {"maxtext": trainer}


@hookimpl
def rlax_register_signal() -> dict[str, Extension]:
    return {
        "reference": Extension(ReferenceConfig, build_reference),
        "old_policy": Extension(OldPolicyConfig, build_old_policy, check_start=check_old_policy),
        "critic": Extension(
            CriticConfig, Critic.build, check_critic, check_start=check_critic_start
        ),
        "value_head": Extension(ValueHeadConfig, ValueHead.build, check_start=check_head_start),
    }
