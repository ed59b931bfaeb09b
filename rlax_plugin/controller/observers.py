"""Who is told of the run's events."""

from __future__ import annotations

from typing import Any

from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.errors import PluginError
from rlax_plugin.ports.manager import Manager


class Observers:
    """The hooks ``rlax_on_<event>`` of all plug-ins."""

    def __init__(self, manager: Manager, supervision: Supervision):
        self._manager, self._supervision = manager, supervision

    def notify(self, event: str, **arguments: Any) -> None:
        """Calls a hook. A plug-in that raises stops the run, but not the caller's work.

        Args:
          event: the hook's name without ``rlax_on_``.
        """
        try:
            self._manager.call(f"rlax_on_{event}", **arguments)
        except PluginError as error:
            self._supervision.fail(error)
