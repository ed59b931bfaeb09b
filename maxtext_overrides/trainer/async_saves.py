"""The end of asynchronous saves: MaxText forgets each response of Orbax, which keeps a thread.

Orbax starts a thread with an event loop for each asynchronous save, and ends it only when the
caller asks for the result of the save. MaxText never does, so a run would keep one thread and three
open descriptors for each of its checkpoints.
"""

from __future__ import annotations

from typing import Any


class AsyncSaves:
    """Asks for the result of each save before the next one, which waits for it in any case."""

    def __init__(self) -> None:
        self._last: Any = None

    def collect(self) -> None:
        """Ends the thread of the last save.

        Raises:
          Exception: the save has failed; the manager's next save would raise the same.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def watched(self, manager: Any) -> Any:
        """Returns a manager that acts as the given one, and whose responses are kept here."""
        return _Watched(manager, self) if hasattr(manager, _SAVE) else manager

    def keep(self, response: Any) -> None:
        """Keeps the response of a save until ``collect``; None: nothing was saved."""
        self._last = response


_SAVE = "save_checkpointables_async"


class _Watched:
    def __init__(self, manager: Any, saves: AsyncSaves):
        self._manager, self._saves = manager, saves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def save_checkpointables_async(self, *args: Any, **kwargs: Any) -> Any:
        response = getattr(self._manager, _SAVE)(*args, **kwargs)
        self._saves.keep(response)
        return response
