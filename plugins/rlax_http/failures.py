"""The errors of a server, and which of them are temporary."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from rlax_plugin.api import Ending, RlaxError


class ServerError(RlaxError):
    """A server gave no usable answer, which leaves samples without a reward.

    Attributes:
      passes: True if the same request may succeed later, as during an outage.
      after_s: seconds for which the server asked not to be called; None if it did not.
      status: HTTP status of its reply; 0 if there was none, or if a successful one made no sense.
    """

    ending = Ending.SERVER_FAILED

    def __init__(self, said: str, *, passes: bool, after_s: float | None = None, status: int = 0):
        super().__init__(said)
        self.passes, self.after_s, self.status = passes, after_s, status


class UnreadableError(ServerError):
    """A judge's server answered, but without a verdict on this sample.

    The cause may be the completion or the judge.
    """

    def __init__(self, said: str, status: int = 0):
        super().__init__(said, passes=False, status=status)


def passes(status: int) -> bool:
    """True if a reply with this HTTP status may change later."""
    return status in (408, 425, 429) or status >= 500


def retry_after_s(header: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Returns the seconds of a ``Retry-After`` header; None if it has no meaningful value.

    RFC 9110, section 10.2.3: whole seconds, or a date.

    Args:
      header: value of the header.
      now: seconds since 1970.
    """
    if not header:
        return None
    if re.fullmatch(r"\s*[0-9]{1,12}\s*", header, re.ASCII):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now())
    except (ValueError, TypeError, OverflowError, OSError):
        return None
