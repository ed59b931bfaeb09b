"""A plug-in for tests: a whole RL run in seconds, without JAX, MaxText or JetStream.

List ``rlax_plugin.testing`` in ``rlax.plugins`` and choose

- prompt source ``numbers`` and reward ``even``: a task with 64 tokens;
- trainer ``bigram``: REINFORCE on a bigram policy, with checkpoints;
- rollout engine ``scripted``: samples from that policy, and can be slow;
- weight store ``npz``: one checksummed file per version;
- signal ``running_value``: a value for each prompt, learned from its rewards;
- observer ``tally``: counts scored groups and steps, each once over kills.

All other components are the real ones: controller, ledger, gRPC, parameter server, workers and
reward processes. So the author of a sampler, filter, reward, advantage, tracker or observer sees
it at work within seconds, and a fault test can end processes as often as it likes. Other slots of
an objective cannot be tried in such a run, because its trainer is plain REINFORCE. Use
``evaluate_objective`` for them, which computes one update on arrays of your own.

For the test of a plug-in there are

- ``check_plugin``, which tries every part that it offers against the contract of its kind; and
  ``check_engine``, ``check_trainer`` and ``check_store`` for parts that need a model of their own;
- ``make_prompt``, ``make_sampled``, ``make_episode``, ``make_group``, ``make_batch``,
  ``make_arrays``, ``make_rates``, ``make_request``, ``make_version`` and ``publish_version``:
  records with sensible contents;
- ``FakeTrainerPort``: the controller as a trainer sees it; it rejects calls that do not occur in a
  run.
"""

from __future__ import annotations

import functools

import numpy as np

from rlax_plugin.build import build_weight_store
from rlax_plugin.ports.hookspecs import hookimpl
from rlax_plugin.ports.protocols import BuildContext, Extension, PromptSource
from rlax_plugin.testing.builders import (
    make_arrays,
    make_batch,
    make_episode,
    make_group,
    make_prompt,
    make_rates,
    make_request,
    make_sampled,
    make_version,
    publish_version,
)
from rlax_plugin.testing.checking import (
    Checked,
    check_engine,
    check_plugin,
    check_store,
    check_trainer,
)
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.fakes import FakeTrainerPort
from rlax_plugin.testing.objectives import Evaluation, evaluate_objective
from rlax_plugin.testing.running_value import RunningValue, RunningValueConfig
from rlax_plugin.testing.store import NpzConfig, NpzStore
from rlax_plugin.testing.tally import Tally, TallyConfig
from rlax_plugin.testing.task import Even, EvenConfig, Numbers, NumbersConfig, check_vocabulary
from rlax_plugin.testing.trainer import BigramConfig, BigramTrainer

__all__ = [
    "Checked",
    "Evaluation",
    "FakeTrainerPort",
    "check_engine",
    "check_plugin",
    "check_store",
    "check_trainer",
    "evaluate_objective",
    "make_arrays",
    "make_batch",
    "make_episode",
    "make_group",
    "make_prompt",
    "make_rates",
    "make_request",
    "make_sampled",
    "make_version",
    "publish_version",
]


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"numbers": Extension(NumbersConfig, lambda config, context: Numbers(config))}


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"even": Extension(EvenConfig, lambda config, context: Even())}


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    def build(config: ScriptedConfig, context: BuildContext) -> ScriptedEngine:
        @functools.cache
        def source() -> PromptSource:
            choice, key = context.section.prompt_source, "rlax.prompt_source"
            return context.part("prompt_source", choice, key)

        def decode(tokens: np.ndarray) -> str:
            return source().decode(tokens)

        return ScriptedEngine(config, build_weight_store(context), context.section, decode)

    def check(config: ScriptedConfig, context: BuildContext) -> None:
        check_vocabulary(context)

    return {"scripted": Extension(ScriptedConfig, build, check)}


@hookimpl
def rlax_register_weight_store() -> dict[str, Extension]:
    return {"npz": Extension(NpzConfig, lambda config, context: NpzStore())}


@hookimpl
def rlax_register_observer() -> dict[str, Extension]:
    return {"tally": Extension(TallyConfig, Tally.build)}


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    return {"bigram": Extension(BigramConfig, BigramTrainer.build, BigramTrainer.check)}


@hookimpl
def rlax_register_signal() -> dict[str, Extension]:
    def build(config: RunningValueConfig, context: BuildContext) -> RunningValue:
        return RunningValue(config.rate)

    return {"running_value": Extension(RunningValueConfig, build)}
