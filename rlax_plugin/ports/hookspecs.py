"""Every hook, on one page; docs/plugin_hooks.md has an example of each.

Two kinds, no third.

- ``rlax_register_<kind>`` returns ``{name: Extension}``. ``build`` calls it in every process
  that loads the plug-ins, before any device is touched. ``Extension.build`` is called only in the
  processes named below. An exception stops the process with the plug-in's name.
- ``rlax_on_<event>`` observes and returns nothing. It is called on the controller's event loop in
  the trainer process, so it must be quick; an exception stops the run with the plug-in's name.

Plug-in order never changes a result: no ``firstresult``, ``tryfirst`` or wrappers.
"""

from __future__ import annotations

from collections.abc import Mapping

import pluggy

from rlax_plugin.ports.protocols import Extension
from rlax_plugin.types import Group, WeightVersion

PROJECT = "rlax_plugin"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Extensions = Mapping[str, Extension]


@hookspec
def rlax_register_aggregation() -> Extensions:
    """Slot ``aggregation``: inputs -> weights per token, and their total. Built in the trainer."""
    raise NotImplementedError


@hookspec
def rlax_register_importance_weight() -> Extensions:
    """Slot ``importance_weight``: inputs -> weight per token, no gradient. Built in the trainer."""
    raise NotImplementedError


@hookspec
def rlax_register_advantage() -> Extensions:
    """Slot ``advantage``: a batch's ``Outcomes`` -> advantages (numpy). Built in the trainer."""
    raise NotImplementedError


@hookspec
def rlax_register_gradient_term() -> Extensions:
    """Slots ``grad_1``, ``grad_2``: inputs -> term per token, with gradient. In the trainer."""
    raise NotImplementedError


@hookspec
def rlax_register_correction() -> Extensions:
    """Slot ``corrections``: inputs -> factor per token, no gradient. Built in the trainer."""
    raise NotImplementedError


@hookspec
def rlax_register_objective() -> Extensions:
    """Presets, each a named choice of the slots: a ``presets.Preset``. Built in the trainer."""
    raise NotImplementedError


@hookspec
def rlax_register_reward() -> Extensions:
    """A ``protocols.Reward``. Built in the reward processes, without JAX."""
    raise NotImplementedError


@hookspec
def rlax_register_prompt_source() -> Extensions:
    """A ``protocols.PromptSource``. Built in the trainer, and in workers that serve text."""
    raise NotImplementedError


@hookspec
def rlax_register_sampler() -> Extensions:
    """A ``protocols.Sampler``. Built in the trainer, for the controller."""
    raise NotImplementedError


@hookspec
def rlax_register_filter() -> Extensions:
    """A ``protocols.Filter``. Built in the trainer, for the controller."""
    raise NotImplementedError


@hookspec
def rlax_register_rollout_engine() -> Extensions:
    """A ``protocols.RolloutEngine``. Built in workers."""
    raise NotImplementedError


@hookspec
def rlax_register_weight_store() -> Extensions:
    """A ``protocols.WeightStore``. Built in trainer, workers and parameter servers."""
    raise NotImplementedError


@hookspec
def rlax_register_launcher() -> Extensions:
    """A ``protocols.Launcher``. Built in the trainer, for the controller."""
    raise NotImplementedError


@hookspec
def rlax_register_tracker() -> Extensions:
    """A ``protocols.Tracker``. Built in the trainer, for the controller."""
    raise NotImplementedError


@hookspec
def rlax_register_trainer() -> Extensions:
    """A ``protocols.Trainer``. Built in the trainer, once the controller has started."""
    raise NotImplementedError


@hookspec
def rlax_on_run_start(run_dir: str, config_hash: str) -> None:
    """Every part is built and a worker is ready; no prompt is asked yet. Also on a resume."""


@hookspec
def rlax_on_group_scored(group: Group, rejected: str | None) -> None:
    """A group is scored; ``rejected`` is None when it was accepted to training.

    Its ``advantages`` are None: they are computed when its batch is known.
    """


@hookspec
def rlax_on_step_end(step: int, metrics: Mapping[str, float]) -> None:
    """A training step is done, with these metrics."""


@hookspec
def rlax_on_weights_published(version: WeightVersion) -> None:
    """A version is visible to workers; the first is what training starts from."""


@hookspec
def rlax_on_worker_lost(worker: str, reason: str) -> None:
    """A worker missed its heartbeats, broke its connection, left, or is quarantined."""


@hookspec
def rlax_on_run_error(error: str) -> None:
    """A run has failed; its processes are about to be ended."""
