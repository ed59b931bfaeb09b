"""The workers that a driver keeps in a Ray cluster: started, moved, started again and ended.

Nothing here imports Ray; ``driver`` has the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlax_ray.driver import RayActor, RayCall, RayCluster

_LONG_S = 60.0  # a worker that has lived so long did not fail at its start
_BAD_CONFIG = 2  # exit status of ``rlax serve``: to start it again at once would not help
_SLOWEST_S = 5.0  # between two starts of a worker that fails
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0  # before one that fails again and again is started
_BEFORE_S = 5.0  # a node that is drained is left so long before its deadline
_WAITS_S = 30.0  # for a node, until it is said


class Lost(Exception):
    """A call of an actor ended without a result.

    Attributes:
      gone: the actor does not come back.
    """

    def __init__(self, reason: str, gone: bool):
        super().__init__(reason)
        self.gone = gone


@dataclass
class Worker:
    """A worker of a pool, in whatever process it runs at present.

    Attributes:
      placing: the call that tells the node of its actor; None: another actor is to be made.
      node: the node of its actor; empty: it has none at present.
      since_s: time since which it has no node.
      serving: the call that lasts as long as its process; None: it is to be started.
      failures: number of starts in a row that failed.
      next_s: it is not started before this time.
      moves: its node is being drained, so another worker takes its place.
      leaves_s: the time at which it is ended if it has not left; None: it stays.
      given_up: the reason why it is only started now and then; empty: it is started at once.
      pauses: number of such pauses since it has worked.
    """

    pool: int
    name: str
    actor: RayActor
    placing: RayCall | None
    since_s: float
    node: str = ""
    serving: RayCall | None = None
    began_s: float = 0.0
    failures: int = 0
    next_s: float = 0.0
    said: bool = False
    moves: bool = False
    leaves_s: float | None = None
    given_up: str = ""
    pauses: int = 0

    @property
    def stays(self) -> bool:
        """True if it counts as one of its pool's."""
        return not self.moves and self.leaves_s is None


def shares(pools: Sequence[Mapping[str, Any]], workers: int) -> list[int]:
    """Divides a number of workers: the least number of each pool, then the first pools first."""
    counts = [pool["min"] for pool in pools]
    left = workers - sum(counts)
    for index, pool in enumerate(pools):
        more = max(0, min(left, pool["most"] - counts[index]))
        counts[index] += more
        left -= more
    return counts


@dataclass
class Workers:
    """All workers of a run.

    Args:
      cluster: see ``RayCluster``.
      pools: ``name``, ``min``, ``most``, and ``arguments`` of ``rlax serve``, of each pool.
      token: returns what the file of the worker token has at present.
      report: (event, its fields): ``log``, ``restarted``, ``started``, ``failing``, ``failed``.
      max_restarts: number of failed starts in a row.
      drain_s: time that a worker needs at most to leave.
      last_incarnation: the highest number that the run has given so far.
    """

    cluster: RayCluster
    pools: Sequence[Mapping[str, Any]]
    token: Callable[[], str]
    report: Callable[..., None]
    max_restarts: int
    drain_s: float
    last_incarnation: int = 0
    clock: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    all: list[Worker] = field(default_factory=list)
    _wanted: int = 0
    _token: str = ""
    _worked: bool = False  # True once a worker has lived for _LONG_S

    def resize(self, wanted: int) -> None:
        """Sets the number of workers; ``tick`` starts and ends them."""
        self._wanted = wanted

    def tick(self) -> None:
        """Looks at every worker once, and does what is to be done; call it every second or so."""
        self._renew_token()
        draining = self.cluster.draining()
        for worker in list(self.all):
            self._look(worker, draining)
        for index, wanted in enumerate(shares(self.pools, self._wanted)):
            self._fill(index, wanted)
        kept = [one for one in self.all if one.stays]
        if kept and not self._worked and all(one.given_up for one in kept):
            self.report("failed", text=kept[-1].given_up)

    def stop(self, grace_s: float) -> None:
        """Asks all workers to end now; ``tick`` removes them as they end."""
        self._wanted = 0
        self.pools = [{**pool, "min": 0} for pool in self.pools]
        for worker in self.all:
            self._leave(worker, grace_s)

    def _renew_token(self) -> None:
        if (token := self.token()) != self._token:
            if self._token:
                for worker in self.all:
                    worker.actor.call("renew", token)
            self._token = token

    def _look(self, worker: Worker, draining: Mapping[str, float]) -> None:
        now = self.clock()
        if worker.serving is not None and now - worker.began_s > _LONG_S:
            worker.failures, worker.pauses, worker.given_up, self._worked = 0, 0, "", True
        if worker.serving is not None and worker.serving.done():
            self._ended(worker, worker.serving, now)
        if worker.leaves_s is not None and (worker.serving is None or now >= worker.leaves_s):
            worker.actor.kill()
            self.all.remove(worker)
            self._says_failing(worker, "")
            return
        if not worker.node:
            self._place(worker, now)
        if (left_s := draining.get(worker.node)) is not None and worker.leaves_s is None:
            self._move(worker, left_s)
        ready = worker.node and worker.leaves_s is None
        if ready and worker.serving is None and now >= worker.next_s:
            self._serve(worker, now)

    def _place(self, worker: Worker, now: float) -> None:
        """Learns whether the actor of a worker is there; before that it is not called."""
        if worker.placing is None:
            if now >= worker.next_s:
                worker.actor = self.cluster.actor(worker.name, self.pools[worker.pool])
                worker.placing = worker.actor.call("place")
        elif worker.placing.done():
            try:
                worker.node = str(worker.placing.result())
            except Lost as error:
                worker.placing = None if error.gone else worker.actor.call("place")
                if error.gone:  # it could not be made, which Ray does not try again
                    self._failed(worker, f"could not be started by Ray: {error}", now)
        elif not worker.said and now - worker.since_s > _WAITS_S:
            worker.said = True
            needs = self.pools[worker.pool]["needs"]
            self._log(f"worker {worker.name} waits for a node that has {needs}")

    def _ended(self, worker: Worker, serving: RayCall, now: float) -> None:
        worker.serving = None
        try:
            status, last = serving.result()
        except Lost as error:  # Ray starts its actor again, on another node if need be
            worker.node, worker.since_s, worker.said = "", now, False
            worker.placing = None if error.gone else worker.actor.call("place")
            if worker.leaves_s is None:
                self._log(f"worker {worker.name} was lost with its process or node: {error}")
                self.report("restarted")
            return
        if worker.leaves_s is None:
            text = f"ended with status {status}: {last}"
            self._failed(worker, text, now, wrong_config=status == _BAD_CONFIG)

    def _failed(self, worker: Worker, text: str, now: float, *, wrong_config: bool = False) -> None:
        """Has a worker started again: soon, or after a pause if that has not helped."""
        worker.failures += 1
        self._log(f"worker {worker.name} {text}")
        # A config that was right may name a file that is wrong for a while.
        if wrong_config or worker.given_up or worker.failures > self.max_restarts:
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**worker.pauses)
            worker.given_up, worker.pauses = f"worker {worker.name} {text}", worker.pauses + 1
            again = time.strftime("%H:%M:%S", time.localtime(self.now_ms() / 1000 + pause_s))
            times = f"{worker.failures} times in a row, the last time it {text}"
            self._says_failing(worker, f"is started again at {again}: it failed {times}")
        else:
            pause_s = min(_SLOWEST_S, 0.1 * 2**worker.failures)
        worker.next_s = now + pause_s
        self.report("restarted")

    def _says_failing(self, worker: Worker, text: str) -> None:
        if worker.given_up:
            text = text and f"worker {worker.name} {text}"
            self.report("failing", worker=worker.name, text=text)

    def _serve(self, worker: Worker, now: float) -> None:
        # Higher than any number before, also than those of a driver whose last ones are unknown.
        self.last_incarnation = max(self.last_incarnation + 1, self.now_ms())
        arguments = [*self.pools[worker.pool]["arguments"], "--name", worker.name]
        arguments += ["--incarnation", str(self.last_incarnation)]
        self._says_failing(worker, "")
        worker.began_s = now
        worker.serving = worker.actor.call("serve", arguments, self._token)
        self.report("started", incarnation=self.last_incarnation)

    def _move(self, worker: Worker, left_s: float) -> None:
        """Has another worker take the place of one on such a node; then the one leaves."""
        if not worker.moves:
            worker.moves = True
            until = "soon" if left_s == float("inf") else f"in {left_s:.0f} s"
            self._log(f"the node of worker {worker.name} ends {until}: it moves to another node")
        others = [one for one in self.all if one.pool == worker.pool and one.stays and one.node]
        enough = shares(self.pools, self._wanted)[worker.pool]
        if len(others) >= enough or left_s <= self.drain_s + _BEFORE_S:
            self._leave(worker, max(0.0, min(self.drain_s, left_s - _BEFORE_S)))

    def _leave(self, worker: Worker, grace_s: float) -> None:
        leaves_s = self.clock() + grace_s
        if worker.leaves_s is None or leaves_s < worker.leaves_s:
            worker.leaves_s = leaves_s
            worker.actor.call("stop", grace_s)

    def _fill(self, index: int, wanted: int) -> None:
        here = [one for one in self.all if one.pool == index and one.stays]
        for worker in here[wanted:]:
            self._leave(worker, self.drain_s)
        for _ in range(wanted - len(here)):
            taken = {one.name for one in self.all}
            pool = self.pools[index]
            name = next(
                n for i in range(len(taken) + 1) if (n := f"{pool['name']}-{i}") not in taken
            )
            actor = self.cluster.actor(name, pool)
            self.all.append(Worker(index, name, actor, actor.call("place"), self.clock()))

    def _log(self, text: str, level: str = "warning") -> None:
        self.report("log", level=level, text=text)
