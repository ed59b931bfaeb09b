"""A plug-in for tests: a whole RL run in seconds, without JAX, MaxText or JetStream.

List ``rlax_plugin.testing`` in ``rlax.plugins`` and choose

- prompt source ``numbers`` and reward ``even``: a task with 64 tokens;
- trainer ``bigram``: REINFORCE on a bigram policy, with checkpoints;
- rollout engine ``scripted``: draws from that policy, and can be slow, broken, or hold wrong
  weights;
- weight store ``npz``: one checksummed file per version;
- a run directory under ``objects://``: a local stand-in for ``gs://`` (see ``object_store``).

Everything around them is the real thing: controller, ledger, gRPC, parameter server, workers and
reward processes. So the author of a sampler, gate, reward, advantage or tracker sees it at work
within seconds, and a fault test can end processes as often as it likes. What it cannot try is an
objective's other slots: the trainer's is plain REINFORCE. For them there is ``evaluate_objective``,
which computes one update on arrays of your own.
"""

from __future__ import annotations

from rlax_plugin.build import build_weight_store
from rlax_plugin.config import NoOptions
from rlax_plugin.hookspecs import hookimpl
from rlax_plugin.protocols import BuildContext, Extension
from rlax_plugin.testing import object_store
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.objectives import Evaluation, evaluate_objective
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.testing.task import Even, EvenConfig, Numbers, NumbersConfig
from rlax_plugin.testing.trainer import BigramConfig, BigramTrainer

__all__ = ["Evaluation", "evaluate_objective"]

object_store.register()  # with the plug-in, so before any process opens the run's directory


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"numbers": Extension(NumbersConfig, lambda config, context: Numbers(config))}


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"even": Extension(EvenConfig, lambda config, context: Even(config))}


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    def build(config: ScriptedConfig, context: BuildContext) -> ScriptedEngine:
        return ScriptedEngine(config, build_weight_store(context), context.section)

    return {"scripted": Extension(ScriptedConfig, build)}


@hookimpl
def rlax_register_weight_store() -> dict[str, Extension]:
    return {"npz": Extension(NoOptions, lambda config, context: NpzStore())}


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    return {"bigram": Extension(BigramConfig, BigramTrainer.build)}
