"""Every hook, on one page; docs/plugin_hooks.md has an example of each.

Two kinds, no third.

- ``rlax_register_<kind>`` returns ``{name: Extension}``; there is one for each entry of ``kinds``.
  ``build`` calls it in every process that loads the plug-ins, before any device is touched.
  ``Extension.build`` is called only in the processes that the entry names. An exception stops the
  process with the plug-in's name.
- ``rlax_on_<event>`` observes and returns nothing. It is called on the controller's event loop in
  the trainer process, so it must be quick; an exception stops the run with the plug-in's name.

Plug-in order never changes a result: no ``firstresult``, ``tryfirst`` or wrappers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pluggy

from rlax_plugin.base.types import ScoredGroup, WeightVersion
from rlax_plugin.ports.kinds import ALL, Kind
from rlax_plugin.ports.protocols import Extension

PROJECT = "rlax_plugin"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Extensions = Mapping[str, Extension]


def _register(kind: Kind) -> Callable[[], Extensions]:
    def register() -> Extensions:
        raise NotImplementedError

    register.__name__ = register.__qualname__ = kind.hook
    keys = ", ".join(f"``{key}``" for key in kind.config_keys)
    register.__doc__ = f"``{kind.part}``, chosen by {keys}. Built in {kind.process}."
    return hookspec(register)


# rlax_register_<kind> -> its specification.
REGISTER: Mapping[str, Callable[[], Extensions]] = MappingProxyType(
    {kind.hook: _register(kind) for kind in ALL}
)


@hookspec
def rlax_on_run_start(run_dir: str, config_hash: str) -> None:
    """Every part is built and a worker is ready; no prompt is issued yet. Also on a resume."""


@hookspec
def rlax_on_group_scored(group: ScoredGroup, rejected: str | None) -> None:
    """A group is scored; ``rejected`` is None when it was accepted for training.

    Its ``advantages`` are None: they are computed when its batch is known.
    """


@hookspec
def rlax_on_step_end(step: int, metrics: Mapping[str, float]) -> None:
    """A training step is done, with these metrics."""


@hookspec
def rlax_on_weights_published(version: WeightVersion) -> None:
    """A version is visible to workers; the first one is the initial weights of training."""


@hookspec
def rlax_on_worker_lost(worker: str, reason: str) -> None:
    """A worker missed its heartbeats, broke its connection, left, or is quarantined."""


@hookspec
def rlax_on_run_error(error: str) -> None:
    """A run has failed; its processes are about to be ended."""


_EVENT = "rlax_on_"
# rlax_on_<event> -> its specification.
OBSERVE: Mapping[str, Callable[..., None]] = MappingProxyType(
    {name: function for name, function in vars().items() if name.startswith(_EVENT)}
)
# What may happen in a run.
EVENTS = tuple(name.removeprefix(_EVENT) for name in OBSERVE)
