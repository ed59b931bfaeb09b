"""A worker of a run, as the controller sees it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlax_plugin.base.types import Attempt, Request
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.identities import Identity
from rlax_plugin.rollout.fleet.links import WorkerLink
from rlax_plugin.rollout.fleet.progress import Progress


@dataclass(slots=True, eq=False)
class Worker:
    """One worker, from a registration to its loss; its process may register again.

    Attributes:
      version: the verified weights that it holds; -1: none of this trainer process.
      last_seen: time of its last heartbeat by the fleet's clock, in seconds.
      assigned: samples sent to it that still need a slot, as far as its heartbeats have said.
      requests: number of requests that it has not answered.
      keep: the version that it is to keep, for an evaluation; -1: none, it follows the newest.
      kept: the version that it reports to keep; -1: none.
      progress: of the requests that it was sent.
      capabilities: of its engine.
      lost: the reason of its loss; empty while it is a member.
      trusted: False once its weights were wrong, or a reply was invalid.
      rests: True while it gets no groups because it was lost again and again, see ``losses``.
      incarnation: number of its start among those of its name, see ``fencing``; 0: not numbered.
      suspicion: rule that it breaks -> how, in words, without ending its membership.
      fenced: True once a later start of it has registered; what is still read from it is void.
      tokens_per_s: of one sequence, as its newest heartbeats report them; 0: not measured.
      measured_s: time of ``time.monotonic`` at which a heartbeat last told of new tokens.
      speed: ``tokens_per_s`` as a multiple of the median worker's; 1: about the same, or not
        measured.
      given_s: time of ``time.monotonic`` at which it was last sent a request.
      paused_s: see ``WorkerLink.paused_s``, at its last heartbeat.
    """

    name: str
    address: str
    capabilities: Capabilities
    version: int
    process: str
    link: WorkerLink
    last_seen: float
    progress: Progress
    draining: bool = False
    assigned: int = 0
    requests: int = 0
    keep: int = -1
    kept: int = -1
    lost: str = ""
    trusted: bool = True
    rests: bool = False
    incarnation: int = 0
    fenced: bool = False
    tokens_per_s: float = 0.0
    measured_s: float = 0.0
    speed: float = 1.0
    given_s: float = field(default_factory=time.monotonic)
    paused_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    suspicion: dict[str, str] = field(default_factory=dict)
    _unfinished: dict[Attempt, int] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Sequences that it decodes at once."""
        return self.capabilities.slots

    @property
    def ready(self) -> bool:
        """True if groups may be sent to it: it holds weights and is not about to leave."""
        return self.version >= 0 and not self.draining

    def serves(self, exactly: int | None) -> bool:
        """True if it takes groups of exactly this version, or (None) of any recent enough one."""
        if exactly is None:
            return self.ready and self.keep < 0 and self.kept < 0
        return self.ready and self.keep == self.kept == exactly

    @property
    def identity(self) -> Identity:
        """Name and process; they identify its process even among those of the same name."""
        return self.name, self.process

    def assign(self, request: Request) -> None:
        """Counts a request that is sent to it."""
        attempt, samples = (request.key, request.attempt), len(request.seeds)
        self._unfinished[attempt] = self._unfinished.get(attempt, 0) + samples
        self.assigned += samples
        self.requests += 1
        self.given_s = time.monotonic()

    def heard_unfinished(self, unfinished: Mapping[Attempt, int]) -> None:
        """Releases the samples that have ended, although others of their request go on.

        Args:
          unfinished: request -> its samples that still need a slot.
        """
        for attempt, samples in unfinished.items():
            if samples < self._unfinished.get(attempt, 0):
                self.assigned -= self._unfinished[attempt] - samples
                self._unfinished[attempt] = samples

    def unassign(self, request: Request) -> None:
        """Takes off a request that it has answered, or will never answer."""
        self.assigned -= self._unfinished.pop((request.key, request.attempt), 0)
        self.requests -= 1
