"""An interface that may change requests before they are issued again."""

from __future__ import annotations

from rlax_plugin.types import Request


class RequestRefresher:
    """May change requests that are issued again; by default they are sent unchanged."""

    def refreshed(self, request: Request) -> Request:
        """Returns the request to send.

        Args:
          request: the next attempt; ``resume`` holds the newest unfinished samples known, if any.
        """
        return request

    def reissued(self, request: Request, reason: str) -> None:
        """Called with each request that is issued again, as it will be sent."""
