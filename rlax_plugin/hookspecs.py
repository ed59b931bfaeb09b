"""Every hook, on one page.

Two kinds, no third. ``rlax_register_<kind>`` returns ``{name: Extension}``; it is called once per
process by ``build``, before any device is touched, and an exception stops the run.
``rlax_on_<event>`` observes and returns nothing; it is called on the controller's event loop in the
trainer process, and an exception stops the run with the plug-in's name.

Plug-in order never changes a result: no ``firstresult``, ``tryfirst`` or wrappers.
"""

from __future__ import annotations

from collections.abc import Mapping

import pluggy

from rlax_plugin.protocols import Extension
from rlax_plugin.types import Group, WeightVersion

PROJECT = "rlax_plugin"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Extensions = Mapping[str, Extension]


@hookspec
def rlax_register_aggregation() -> Extensions:
    """Objective slot ``agg``: how per-token terms become one sum and one weight."""
    raise NotImplementedError


@hookspec
def rlax_register_importance_weight() -> Extensions:
    """Objective slot ``is``: a per-token weight that carries no gradient."""
    raise NotImplementedError


@hookspec
def rlax_register_advantage() -> Extensions:
    """Objective slot ``advantage``: a batch's ``Outcomes`` to advantages (numpy)."""
    raise NotImplementedError


@hookspec
def rlax_register_gradient_term() -> Extensions:
    """Objective slots ``grad_1`` and ``grad_2``: per-token terms that carry the gradient."""
    raise NotImplementedError


@hookspec
def rlax_register_correction() -> Extensions:
    """Masks or weights for the difference between sampler and trainer; they compose."""
    raise NotImplementedError


@hookspec
def rlax_register_objective() -> Extensions:
    """Presets: a named choice of the five slots. ``build`` returns an ``objective.Preset``."""
    raise NotImplementedError


@hookspec
def rlax_register_reward() -> Extensions:
    """``build`` returns a ``protocols.Reward``. Also called in the reward processes."""
    raise NotImplementedError


@hookspec
def rlax_register_prompt_source() -> Extensions:
    """``build`` returns a ``protocols.PromptSource``."""
    raise NotImplementedError


@hookspec
def rlax_register_sampler() -> Extensions:
    """``build`` returns a ``protocols.Sampler``."""
    raise NotImplementedError


@hookspec
def rlax_register_gate() -> Extensions:
    """``build`` returns a ``protocols.Gate``."""
    raise NotImplementedError


@hookspec
def rlax_register_rollout_engine() -> Extensions:
    """``build`` returns a ``protocols.RolloutEngine``. Called in worker processes."""
    raise NotImplementedError


@hookspec
def rlax_register_weight_store() -> Extensions:
    """``build`` returns a ``protocols.WeightStore``. Called in the trainer and in workers."""
    raise NotImplementedError


@hookspec
def rlax_register_launcher() -> Extensions:
    """``build`` returns a ``protocols.Launcher``."""
    raise NotImplementedError


@hookspec
def rlax_register_tracker() -> Extensions:
    """``build`` returns a ``protocols.Tracker``."""
    raise NotImplementedError


@hookspec
def rlax_register_trainer() -> Extensions:
    """``build`` returns a ``protocols.Trainer``."""
    raise NotImplementedError


@hookspec
def rlax_on_run_start(run_dir: str, config_hash: str) -> None:
    """After every part is built and before the first prompt is issued."""


@hookspec
def rlax_on_group_scored(group: Group, refused: str | None) -> None:
    """After a group is scored; ``refused`` is None when it was admitted to training.

    Its ``advantages`` are None: they are computed when its batch is known.
    """


@hookspec
def rlax_on_step_end(step: int, metrics: Mapping[str, float]) -> None:
    """After each training step, with that step's metrics."""


@hookspec
def rlax_on_weights_published(version: WeightVersion) -> None:
    """After a version is visible to workers."""


@hookspec
def rlax_on_worker_lost(worker: str, reason: str) -> None:
    """After a worker missed its heartbeats or broke its connection."""


@hookspec
def rlax_on_run_error(error: str) -> None:
    """Before a failing run shuts down."""
