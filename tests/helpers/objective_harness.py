"""Objectives as a trainer sees them: resolved from a config, made a loss, differentiated."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax_objectives

from rlax_plugin.build import build_part
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.training.objective.advantages import Outcomes
from rlax_plugin.training.objective.loss import ObjectiveSlots, TokenOutputs, make_loss, resolve

_OFFERED = tuple(rlax_objectives.rlax_register_objective())
PRESETS = tuple(name for name in _OFFERED if "/" not in name)
LIBRARIES = tuple(name for name in _OFFERED if "/" in name)  # defaults that libraries ship
# Half as long to compile, and run a few times only.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
modes = pytest.mark.parametrize("mode", [lambda f: f, jit], ids=["eager", "jit"])


def slots_of(
    preset: str = "grpo",
    *,
    max_staleness: int = 1,
    max_new_tokens: int = 4,
    sequences_per_row: int = 1,
    signals: Sequence[str] = (),
    logged: bool = False,
    **objective: Any,
) -> ObjectiveSlots:
    section = RlaxSection.model_validate(
        {
            "plugins": ["rlax_objectives"],
            "prompt_source": {"name": "any"},
            "rewards": [{"name": "any"}],
            "rollouts": {"max_new_tokens": max_new_tokens},
            "staleness": {"max_staleness": max_staleness},
            "batches": {"sequences_per_row": sequences_per_row},
            "signals": [{"name": name} for name in signals],
            "logged_samples": {"path": "runs/other" if logged else ""},
            "objective": {"preset": preset, **objective},
        }
    )
    context = BuildContext(run_dir=Path("unused"), seed=0, section=section)
    return resolve(section, lambda kind, choice, key: build_part(kind, choice, key, context))


def advantages_of(
    slots: ObjectiveSlots, rewards: Any, lengths: Any, groups: Any = None, **more: Any
) -> Any:
    rewards_n = np.array(rewards, float)
    group_n = np.zeros(len(rewards_n), int) if groups is None else np.array(groups)
    return slots.advantages(Outcomes(rewards_n, np.array(lengths), group_n, **more))


def data_of(mask: Any, advantages: Any, behaviour: Any, staleness: Any = 1) -> dict[str, Any]:
    mask = np.array(mask, np.int32)
    behaviour = np.array(behaviour)
    return {
        "targets_segmentation": mask,
        "rl_mask": mask,
        "rl_advantages": np.asarray(advantages) * np.ones(mask.shape, behaviour.dtype),
        "rl_behaviour_logprobs": behaviour,
        "rl_staleness": np.full(mask.shape, staleness, np.int32),
    }


class Result(NamedTuple):
    loss_sum: Any
    weight: Any
    metrics: Any
    grad_bt: Any


def differentiated(slots: ObjectiveSlots) -> Callable[[Any, Any], Result]:
    """(logprobs_bt, data) -> the loss and its gradient with regard to the log-probs."""
    loss = make_loss(slots)

    def total(logprobs_bt: Any, data: Any) -> Any:
        loss_sum, weight, metrics = loss(
            TokenOutputs(logprobs_bt, jnp.zeros_like(logprobs_bt)), data
        )
        return loss_sum, (weight, metrics)

    def run(logprobs_bt: Any, data: Any) -> Result:
        (loss_sum, (weight, metrics)), grad_bt = jax.value_and_grad(total, has_aux=True)(
            logprobs_bt, data
        )
        return Result(loss_sum, weight, metrics, grad_bt)

    return run


# Five tokens a, b of the first sample and c, d, e of the second, with the ratios pi/mu
# 6, 0.1 and 0.6, 4, 0.25. Their products are 0.6 and 0.6.
MASK = np.array([[1, 1, 0], [1, 1, 1]])
BEHAVIOUR = np.log([[0.05, 0.4, 1.0], [0.5, 0.1, 0.8]])
LOGPROBS = np.log([[0.3, 0.04, 1.0], [0.3, 0.4, 0.2]])
LENGTHS = (2, 3)


def tokens(values_bt: Any) -> np.ndarray:
    """a, b, c, d, e."""
    return np.asarray(values_bt)[MASK > 0]


def random_case(seed: int, rows: int = 8, length: int = 6) -> Any:
    """(logprobs_bt, data): one sequence of 0 .. ``length`` tokens per row."""
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < rng.integers(0, length + 1, (rows, 1))
    behaviour = -rng.exponential(1.0, (rows, length)).astype(np.float32)
    logprobs = behaviour + rng.normal(0, 0.4, (rows, length)).astype(np.float32)
    data = data_of(mask, rng.normal(0, 1, (rows, 1)), behaviour)
    data["rl_staleness"] = rng.integers(1, 3, (rows, length)).astype(np.int32)
    return logprobs, data
