"""Reinforcement learning for large language models on the MaxText stack, as plug-ins.

``train`` starts a run from a script or notebook, ``open`` finds one (docs/python.md). Plug-ins
import ``rlax_plugin.api`` and ``rlax_plugin.testing``. Importing this package imports nothing, so
that ``rlax --help`` answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlax_plugin.base.errors import CommandError, ConfigError, DeadlineError, RlaxError
    from rlax_plugin.tools.scripting.handle import Run
    from rlax_plugin.tools.scripting.handle import open_run as open
    from rlax_plugin.tools.scripting.training import train

__version__ = "0.1.0"

__all__ = ["CommandError", "ConfigError", "DeadlineError", "RlaxError", "Run", "open", "train"]


def __getattr__(name: str) -> Any:
    if name in ("CommandError", "ConfigError", "DeadlineError", "RlaxError"):
        from rlax_plugin.base import errors

        return getattr(errors, name)
    if name in ("Run", "open"):
        from rlax_plugin.tools.scripting import handle

        return handle.Run if name == "Run" else handle.open_run
    if name == "train":
        from rlax_plugin.tools.scripting.training import train

        return train
    raise AttributeError(f"module 'rlax_plugin' has no attribute {name!r}")
