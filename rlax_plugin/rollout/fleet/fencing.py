"""The rule for two processes of one worker name: a later start fences an earlier one.

A launcher that starts a lost worker again on another machine cannot know that the old process has
ended: it may be frozen, or cut off, and come back. So a launcher may number the starts of a name;
the number is the *incarnation* of the process. The process with the highest number has the name.
"""

from __future__ import annotations

from rlax_plugin.rollout.fleet.worker import Worker
from rlax_plugin.rpc import rlax_pb2 as pb

_MOST_NAMES = 10_000  # that are remembered; the one that was noted longest ago is forgotten first


class Fence:
    """Remembers the highest incarnation of each name, also when its process has gone."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def note(self, name: str, incarnation: int) -> None:
        """Notes a process that got a name; from now on earlier ones of that name are fenced."""
        if highest := max(incarnation, self._highest.pop(name, 0)):
            self._highest[name] = highest
        if len(self._highest) > _MOST_NAMES:
            del self._highest[next(iter(self._highest))]

    def rejection(self, name: str, incarnation: int) -> str:
        """Returns the reason why a process must end; empty if it has the latest incarnation."""
        if incarnation >= (highest := self._highest.get(name, 0)):
            return ""
        return (
            f"worker {name} was started again since: this process has incarnation {incarnation}, "
            f"the run has {highest}; nothing of this process is used any more"
        )


def taken(request: pb.RegisterRequest, holder: Worker | None, heard_s: float) -> str:
    """Returns the reason why a process must wait for a name of another one; empty: it gets it.

    Only ``Fleet.watch`` loses a silent holder of the name, because it notices when the controller's
    own process was paused: then heartbeats of the holder may be read after this registration. A
    later incarnation does not wait.

    Args:
      heard_s: seconds since the holder's last heartbeat.
    """
    if holder is None or holder.process == request.process or fences(request, holder):
        return ""
    return (
        f"is already used by a worker at {holder.address} (last heartbeat {heard_s:.1f} s "
        "ago): choose another --name, or stop that worker"
    )


def fences(request: pb.RegisterRequest, holder: Worker) -> bool:
    """True if a registration is a later start of the worker that has its name."""
    return holder.process != request.process and request.incarnation > holder.incarnation
