"""Every way in which an episode, its reward or a request can end, and what trains then.

The rule: what the policy can cause is graded or pays what a wrong answer pays, so that no answer
gains by breaking its judge; what it cannot cause never trains, so that no answer pays for a machine
that fails. docs/endings.md has this table.
"""

from __future__ import annotations

import errno
import itertools
import socket
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

Cause = Literal["policy", "outside", "nobody"]
Trains = Literal["its reward", "as wrong", "nothing"]


class Ending(StrEnum):
    """The exit status of an episode with its reward, or of a request.

    Attributes:
      cause: who can have caused it; ``outside`` is everything but the policy.
      trains: ``as wrong``: a wrong answer's reward, of what the answer has brought down.
      of_request: True if it is the end of a request or a group. Its samples do not train, unless
        another attempt continues them.
    """

    cause: Cause
    trains: Trains
    of_request: bool

    def __new__(cls, value: str, cause: Cause, trains: Trains, of_request: bool = False) -> Ending:
        member = str.__new__(cls, value)
        member._value_ = value
        member.cause, member.trains, member.of_request = cause, trains, of_request
        return member

    # The answer is there, whole or in part, and is graded.
    DONE = "done", "policy", "its reward"
    LENGTH = "length", "policy", "its reward"
    CUT = "cut", "policy", "its reward"

    # The answer has brought down what was to grade it.
    OVER_TIME = "over_time", "policy", "as wrong"
    OVER_MEMORY = "over_memory", "policy", "as wrong"
    OVER_OUTPUT = "over_output", "policy", "as wrong"
    CRASHED = "crashed", "policy", "as wrong"
    UNREADABLE = "unreadable", "policy", "as wrong"

    # The answer cannot be shown to have caused it.
    REWARD_FAILED = "reward_failed", "outside", "nothing"
    REWARD_LATE = "reward_late", "outside", "nothing"
    ENVIRONMENT_FAILED = "environment_failed", "outside", "nothing"
    ENVIRONMENT_LATE = "environment_late", "outside", "nothing"
    WITHOUT_TURN = "without_turn", "outside", "nothing"
    PROCESS_ENDED = "process_ended", "outside", "nothing"
    SANDBOX_FAILED = "sandbox_failed", "outside", "nothing"
    SERVER_FAILED = "server_failed", "outside", "nothing"
    DISK_FULL = "disk_full", "outside", "nothing"
    ABSTAINED = "abstained", "nobody", "nothing"

    # No answer, or one that is not used.
    WORKER_LOST = "worker_lost", "outside", "nothing", True
    TRAINER_RESTARTED = "trainer_restarted", "outside", "nothing", True
    QUARANTINED = "quarantined", "outside", "nothing", True
    MOVED = "moved", "nobody", "nothing", True
    TOO_STALE = "too_stale", "nobody", "nothing", True
    NOT_NEEDED = "not_needed", "nobody", "nothing", True

    @property
    def by_reward(self) -> bool:
        """True if a reward says it of a sample that it scores, see ``Score``."""
        return self.trains == "as wrong"

    @property
    def unscored(self) -> bool:
        """True if it leaves a sample without a reward, see ``Unscored``."""
        return self.trains == "nothing" and not self.of_request


_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
_MOST_CAUSES = 16  # a chain of exceptions may be a circle


def ending_of(error: BaseException, otherwise: Ending) -> Ending:
    """Returns what an exception of a reward or an environment says about its sample.

    An error of this project has an attribute ``ending``. Of the others, one of the operating system
    counts, also as a member of an exception group, and where a library has raised its own because
    of it. What ``raise ... from None`` has hidden does not count.

    Args:
      otherwise: returned for every other exception.
    """
    for one in itertools.islice(_with_causes(error), _MOST_CAUSES):
        if isinstance(ending := getattr(one, "ending", None), Ending) and ending.unscored:
            return ending
        if isinstance(one, ConnectionError | TimeoutError | socket.gaierror):
            return Ending.SERVER_FAILED
        if isinstance(one, OSError) and one.errno in _FULL:
            return Ending.DISK_FULL
        if isinstance(one, OSError) and one.errno in _UNREACHABLE:
            return Ending.SERVER_FAILED
    return otherwise


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Returns an exception, then its members and its cause, then theirs, perhaps without end."""
    waiting = deque([error])
    while waiting:
        one = waiting.popleft()
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)
        cause = one.__cause__ if one.__suppress_context__ else one.__context__
        if cause is not None:
            waiting.append(cause)
