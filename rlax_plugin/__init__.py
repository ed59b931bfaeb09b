"""Reinforcement learning for large language models on the MaxText stack, as plug-ins.

Importing this package imports neither JAX nor MaxText nor TensorFlow. What it exports is imported
when it is first used, so that ``rlax --help`` answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlax_plugin.config import Choice, NoOptions, Section
    from rlax_plugin.ports.hookspecs import hookimpl
    from rlax_plugin.ports.protocols import BuildContext, Extension

__version__ = "0.1.0"
__all__ = ["BuildContext", "Choice", "Extension", "NoOptions", "Section", "hookimpl"]

_HOME = {
    "BuildContext": "ports.protocols",
    "Choice": "config",
    "Extension": "ports.protocols",
    "NoOptions": "config",
    "Section": "config",
    "hookimpl": "ports.hookspecs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlax_plugin' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlax_plugin.{_HOME[name]}"), name)
    globals()[name] = value
    return value
