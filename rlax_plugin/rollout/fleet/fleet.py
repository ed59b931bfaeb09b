"""The membership of workers: registration, heartbeats, and the loss of workers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlax_plugin.base.concurrency.clock import Clock
from rlax_plugin.base.text.harmless import is_one_line, one_line
from rlax_plugin.base.types import NATIVE
from rlax_plugin.config import Deadlines
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.capabilities import Needs, of_proto
from rlax_plugin.rollout.fleet.fencing import Fence, fences, taken
from rlax_plugin.rollout.fleet.identities import (
    LONGEST_NAME,
    Identities,
    Identity,
    figures,
    malformed,
)
from rlax_plugin.rollout.fleet.links import RemoteLink, WorkerLink
from rlax_plugin.rollout.fleet.newest import NewestVersion
from rlax_plugin.rollout.fleet.progress import Answers, Progress, moves_of, unfinished_of
from rlax_plugin.rollout.fleet.worker import Worker
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.secret import Secret
from rlax_plugin.rpc.transport.doors import connect

MAX_NONSENSE = 3
"""Invalid replies after which a process is quarantined: a flipped bit may explain one or two."""
_MOST_NOTED = 100  # workers that were rejected: what they say of themselves may be anything
_MOST_WORKERS = 4096  # that are members at once; each has a connection


class FleetListener:
    """Learns of events of the workers of a fleet; called on its event loop."""

    def worker_ready(self, worker: Worker) -> None:
        """Called when a worker can take groups."""

    def worker_heard(self, worker: Worker) -> None:
        """Called with a worker whose heartbeat brought new figures."""

    def worker_quarantined(self, name: str, reason: str) -> None:
        """Called when a worker's samples are void; ``worker_lost`` follows if it is a member."""

    def version_damaged(self, path: str, process: str) -> None:
        """Called when a worker's process was quarantined for what it read.

        Args:
          path: of the first part of the version that it found wrong, as it says.
        """

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """Called when a worker is gone; its groups must be issued again."""


class Fleet(rpc.FleetServicer):
    """The workers of one run. Everything happens on the controller's event loop.

    Args:
      deadlines: heartbeat interval and how many may be missed.
      config_hash: workers started from another config are rejected.
      parameter_server: host:port, which workers receive when they register.
      config: sent to workers that request it, see ``config/handing.py``.
      needs: workers that lack any of it are rejected.
      note: shows the user one line: the reason a worker was rejected, or gets no groups.
      newest: see the attribute; None: the fleet makes one.
      clock: measures the silence of workers.

    Attributes:
      newest: published version, which workers learn from each heartbeat's reply.
      listeners: each learns of the events of workers, in this order.
      workers: name -> live worker.
      identities: the processes that have registered, also those that have gone.
      losses: of workers by name, see there.
      incarnation: identifies this trainer process; weights of another one are not accepted.
      training: True if at least one worker must follow the newest weights.
      had_worker: set once a worker could take groups.
      starting: notes what the workers do before they register.
      unmade: format of weights -> why this run does not make it; workers that read it are rejected.
      here: id of a worker in this process -> makes the link of a registration; the others are
        called by gRPC.
      pauses: id of a worker in another host of the trainer -> see ``WorkerLink.paused_s``.
    """

    def __init__(
        self,
        *,
        deadlines: Deadlines,
        config_hash: str,
        parameter_server: str,
        config: bytes = b"",
        needs: Needs | None = None,
        note: Callable[[str], None] = lambda line: None,
        newest: NewestVersion | None = None,
        clock: Clock | None = None,
    ):
        self.workers: dict[str, Worker] = {}
        self.identities = Identities()
        self.losses = Losses()
        self.incarnation = uuid.uuid4().hex
        self.stopping, self.training, self._pin = False, True, -1
        self._closing: set[asyncio.Future[None]] = set()
        self._deadlines, self._clock = deadlines, clock or Clock()
        self._config_hash, self._parameter_server = config_hash, parameter_server
        self._config, self._needs, self._note = config, needs or Needs(), note
        self._answers = Answers()
        self._noted, self._fence = set[str](), Fence()
        self.newest, self.starting = newest or NewestVersion(), Starting()
        self.listeners: list[FleetListener] = []
        self.had_worker = asyncio.Event()
        self.unmade = dict[str, str]()
        self.here: dict[str, Callable[[], WorkerLink]] = {}
        self.pauses: dict[str, Callable[[], float]] = {}

    def _rejection(self, request: pb.RegisterRequest) -> str | None:
        if why := malformed(request):
            return why
        if request.worker not in self.workers and len(self.workers) >= _MOST_WORKERS:
            return f"the run has {_MOST_WORKERS} workers already"
        if request.config_hash != self._config_hash:
            return (
                f"worker {request.worker} was started from another config "
                f"({one_line(request.config_hash)}; this run has {self._config_hash})"
            )
        identity = request.worker, request.process
        if identity in self.identities and (why := self.newest.rejection(request.version)):
            return why
        fenced = self._fence.rejection(request.worker, request.incarnation)
        return self.identities.rejection(identity) or fenced

    async def Config(self, request: pb.ConfigRequest, context: object) -> pb.ConfigReply:
        return pb.ConfigReply(config=self._config)

    def _unfit(self, name: str, message: pb.Capabilities) -> tuple[Capabilities | None, str]:
        """Returns the capabilities that a worker declares, or None and the reason to reject it."""
        try:
            found = of_proto(message)
            why = self._needs.lacking(found) or self._without(found.weights_format)
        except ValueError as error:
            found, why = None, str(error)
        if why is None:
            return found, ""
        self.rejected(name, why)
        return None, why

    def _without(self, weights_format: str) -> str | None:
        """Says that this run does not make a format; None: it does."""
        if (reason := self.unmade.get(weights_format)) is None:
            return None
        return f"its engine reads weights in the format {weights_format}, and {reason}"

    def unmakes(self, weights_format: str, reason: str) -> None:
        """Rejects, from now on, workers that read a format, which cannot be made."""
        self.unmade[weights_format] = reason
        for worker in list(self.workers.values()):
            if worker.capabilities.weights_format == weights_format:
                self.lose(worker, f"{self._without(weights_format)}")

    def rejected(self, name: str, reason: str) -> None:
        """Shows once why a worker was rejected, and that it does not start."""
        self.starting.note(name, "rejected")
        line = f"worker {one_line(name, LONGEST_NAME)} was rejected: {one_line(reason)}"
        if line not in self._noted and len(self._noted) < _MOST_NOTED:
            self._noted.add(line)
            self._note(line)

    async def Register(self, request: pb.RegisterRequest, context: object) -> pb.RegisterReply:
        if why := self._rejection(request):
            self.rejected(request.worker, why)
            return pb.RegisterReply(accepted=False, reason=why)
        capabilities, why = self._unfit(request.worker, request.capabilities)
        if capabilities is None:
            return pb.RegisterReply(accepted=False, reason=why, unfit=True)
        now, holder = self._clock.now_s(), self.workers.get(request.worker)
        if why := taken(request, holder, now - holder.last_seen if holder else 0.0):
            return pb.RegisterReply(accepted=False, reason=why, name_taken=True)
        # A process that this one does not know may hold weights of an earlier trainer process: the
        # same number means others now, or some that are yet to be computed.
        known = (request.worker, request.process) in self.identities
        if holder is not None:
            holder.fenced = fences(request, holder)
            self.lose(holder, "was started again" if holder.fenced else "registered again")
        self._fence.note(request.worker, request.incarnation)
        if (here := self.here.get(request.process)) is not None:
            link = here()
        else:
            secret = Secret(request.token, request.certificate)
            link = RemoteLink(connect(request.address, secret), self.pauses.get(request.process))
        worker = Worker(
            name=request.worker,
            address=request.address,
            capabilities=capabilities,
            version=request.version if known else -1,
            process=request.process,
            link=link,
            last_seen=now,
            incarnation=request.incarnation,
            rests=self.losses.rest_s(request.worker, now) > 0,
            progress=Progress(
                self._deadlines.group_s,
                self._deadlines.heartbeat_s,
                self._deadlines.weights_s,
                self._answers,
            ),
        )
        self.workers[worker.name] = worker
        self.identities.add(worker, {one.identity for one in self.workers.values()})
        if worker.ready:
            self._tell_ready(worker)
        return pb.RegisterReply(
            accepted=True,
            parameter_server=self._parameter_server,
            latest_version=self.newest.number,
            incarnation=self.incarnation,
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: object) -> pb.HeartbeatReply:
        worker = self._member(request)
        if worker is None or self.stopping:
            if worker is not None:
                self.lose(worker, "the run is over")
            known, fenced = worker is not None, self._fenced(request)
            return pb.HeartbeatReply(known=known, stop=self.stopping, fenced=fenced)
        # A garbled heartbeat raises here: it is none, and a worker that sends no others is silent.
        moves, unfinished = moves_of(request.progress), unfinished_of(request.progress)
        if why := self.newest.rejection(request.version, request.pin):
            self.lose(worker, why)
            return pb.HeartbeatReply(known=False)
        if request.HasField("capabilities"):
            capabilities, why = self._unfit(worker.name, request.capabilities)
            if capabilities is None:
                self.lose(worker, why)
                return pb.HeartbeatReply(known=False)
            worker.capabilities = capabilities
        before, now = (worker.ready, worker.kept, worker.rests), self._clock.now_s()
        elapsed_s, worker.last_seen = now - worker.last_seen, now
        paused_before_s, worker.paused_s = worker.paused_s, worker.link.paused_s()
        elapsed_s = max(0.0, elapsed_s - (worker.paused_s - paused_before_s))
        worker.version = request.version
        worker.draining = request.draining
        worker.rests = worker.rests and self.losses.rest_s(worker.name, now) > 0
        worker.kept = request.pin if request.HasField("pin") else -1
        worker.figures = figures(request.figures)
        worker.progress.heard(
            moves, elapsed_s, version=worker.version, loading="loading_s" in worker.figures
        )
        worker.heard_unfinished(unfinished)
        self._appoint()
        if worker.ready and (worker.ready, worker.kept, worker.rests) != before:
            self._tell_ready(worker)
        for listener in self.listeners:
            listener.worker_heard(worker)
        reply = pb.HeartbeatReply(known=not worker.lost, latest_version=self.newest.number)
        # What it has been sent for training may need newer weights: that ends first.
        if worker.keep >= 0 and (worker.kept == worker.keep or not worker.requests):
            reply.pin = worker.keep
        return reply

    async def Deregister(
        self, request: pb.DeregisterRequest, context: object
    ) -> pb.DeregisterReply:
        if request.quarantine:
            # Only of a process that was a member: another one has given this run nothing.
            if (identity := (request.worker, request.process)) in self.identities:
                self.quarantine(identity, one_line(request.quarantine), request.damaged)
        elif worker := self._member(request):
            # It has ended its calls, which may not all be read yet.
            why = f"it ended: {one_line(request.error)}" if request.error else "left"
            self.lose(worker, why, grace_s=self._deadlines.heartbeat_s)
        return pb.DeregisterReply()

    def _tell_ready(self, worker: Worker) -> None:
        self.had_worker.set()
        for listener in self.listeners:
            listener.worker_ready(worker)

    # --- a worker that keeps one version -------------------------------------------------------

    @property
    def lacks_pinned_worker(self) -> bool:
        """True if a version is pinned but no worker keeps it or is about to."""
        return self._pin >= 0 and not any(worker.keep >= 0 for worker in self.workers.values())

    def pin(self, version: int) -> None:
        """Has one worker keep a version, as soon as another worker is there for training.

        If that worker is lost, another takes its place.
        """
        self._pin = version
        self._appoint()

    def unpin(self) -> None:
        """Lets the worker follow the newest weights again; its next heartbeat's reply says so."""
        self._pin = -1
        for worker in self.workers.values():
            worker.keep = -1

    def _appoint(self) -> None:
        if self._pin < 0 or self.stopping:
            return
        keeping = [w for w in self.workers.values() if w.keep >= 0]
        others = self.serving(None)
        if not keeping and len(others) > self.training:
            # Neither one that was lost often nor a slow one, although these are often idle: the
            # evaluation would take as much longer.
            lost = self.losses.count
            # The pinned version may not have been converted, and is not any more.
            native = [w for w in others if w.capabilities.weights_format == NATIVE]
            min(native or others, key=lambda w: (lost(w.name), *_burden(w))).keep = self._pin
        elif keeping and self.training and all(w.rests for w in others) and keeping[0].ready:
            keeping[0].keep = -1  # its open groups are issued again; it registers anew, and trains
            self.lose(keeping[0], "training needs it: no other worker is ready")

    def _member(self, message: pb.HeartbeatRequest | pb.DeregisterRequest) -> Worker | None:
        """Returns the sender of a message; None if its process is not the member of that name."""
        worker = self.workers.get(message.worker)
        return worker if worker is not None and worker.process == message.process else None

    def _fenced(self, message: pb.HeartbeatRequest) -> str:
        """Returns the reason why a process that was a member must end; empty: there is none."""
        known = self.identities.registrations((message.worker, message.process))
        return self._fence.rejection(message.worker, known[-1].incarnation) if known else ""

    def quarantine(self, identity: Identity, reason: str, damaged: str = "") -> None:
        """Distrusts a process for good; a new process of its name may register.

        Args:
          damaged: see ``FleetListener.version_damaged``; empty: its weights are not the reason.
        """
        if self.identities.rejection(identity):
            return  # it says so again: the reply was lost
        why = self.identities.quarantine(identity, reason)
        workers = self.identities.registrations(identity)
        for worker in workers:
            worker.trusted = False
        for listener in self.listeners:
            listener.worker_quarantined(identity[0], reason)
            if damaged:
                listener.version_damaged(damaged, identity[1])
        for worker in workers:
            self.lose(worker, why)

    def distrust(self, worker: Worker, reason: str) -> None:
        """Loses a worker after an invalid reply; samples that its process generated are void.

        Its process may register again until it has sent ``MAX_NONSENSE`` invalid replies.
        """
        registered = self.identities.registrations(worker.identity)
        for one in registered:
            one.trusted = False
        times = self.identities.answered_nonsense(worker.identity)
        if times >= MAX_NONSENSE:
            what = f"{times} of its replies were invalid, the last one: {reason}"
            self.quarantine(worker.identity, what)
        for one in registered:
            self.lose(one, reason)

    def serving(self, exactly: int | None) -> list[Worker]:
        """Returns the workers that get groups, see ``Worker.serves``.

        One that rests is among them only if all others are gone.
        """
        serving = [worker for worker in self.workers.values() if worker.serves(exactly)]
        return [worker for worker in serving if not worker.rests] or serving

    def answered(self, worker: Worker) -> None:
        """Notes a valid answer, which makes up for an earlier loss."""
        self.losses.answered(worker.name, self._clock.now_s())
        worker.rests = False

    def fail(self, worker: Worker, reason: str) -> None:
        """Loses a worker that has failed; if that happens again and again, it rests afterwards."""
        if self.workers.get(worker.name) is not worker:
            return  # its other calls have failed, too
        if rest_s := self.losses.lost(worker.name, self._clock.now_s()):
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + rest_s))
            self._note(
                f"worker {worker.name} was lost {self.losses.count(worker.name)} times, and has "
                f"answered too little in between: it gets no groups until {until} while others "
                f"can take them ({one_line(reason)})"
            )
        self.lose(worker, reason)

    def lose(self, worker: Worker, reason: str, grace_s: float | None = None) -> None:
        """Forgets a worker; after ``grace_s`` its open calls end, and are issued again."""
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
            worker.lost = reason
            for listener in self.listeners:
                listener.worker_lost(worker, reason)
            self._appoint()
            closing = asyncio.ensure_future(worker.link.close(grace_s))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def watch(self) -> None:
        """Declares workers lost whose heartbeats are missing; runs until cancelled."""
        limit_s = self._deadlines.lost_s
        while True:
            now = self._clock.now_s()
            for worker in list(self.workers.values()):
                if now - worker.last_seen > limit_s:
                    self.fail(worker, f"no heartbeat for {limit_s:g} s")
            oldest = min((w.last_seen for w in self.workers.values()), default=now)
            sleep_s = max(0.05, oldest + limit_s - now)
            await self._clock.sleep(sleep_s)
            if self._clock.now_s() - now - sleep_s > self._deadlines.heartbeat_s:
                # This very process was paused: heartbeats that came meanwhile are read first.
                await self._clock.sleep(self._deadlines.heartbeat_s)

    async def dismiss(self) -> None:
        """Tells the workers that the run is over, each in the reply to its next heartbeat."""
        self.stopping = True
        # One that has missed a beat is not lost yet, and would wait for a trainer that is gone.
        beat_s, clock = self._deadlines.heartbeat_s, self._clock
        end = clock.now_s() + (self._deadlines.heartbeats_lost + 1) * beat_s
        while self.workers and (left := end - clock.now_s()) > 0:
            await clock.sleep(min(left, beat_s / 4))

    async def close(self) -> None:
        for worker in list(self.workers.values()):
            self.lose(worker, "the run is over")
        await asyncio.gather(*self._closing, return_exceptions=True)


def _burden(worker: Worker) -> tuple[float, float]:
    """Orders workers by how slow they are, as far as below the median, and then by their load."""
    return max(1.0, 1 / worker.speed), worker.assigned / worker.slots


_FIRST_S, _LONGEST_S = 15.0, 600.0  # rests, after the second loss and at most
_FORGOTTEN_S = 600.0  # after the last rest, or the last loss without one
_MOST_NAMES = 10_000  # that are remembered; the one that was lost longest ago is forgotten first


@dataclass(slots=True)
class _Record:
    losses: int
    until_s: float  # end of the rest


class Losses:
    """Remembers the recent losses of each name, also when its process has gone."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def lost(self, name: str, now_s: float) -> float:
        """Notes the loss of a worker; returns the seconds that it is to rest, often 0."""
        record = self._records.pop(name, None)
        before = 0 if record is None or now_s - record.until_s > _FORGOTTEN_S else record.losses
        rest_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(before - 1, 30)) if before else 0.0
        self._records[name] = _Record(before + 1, now_s + rest_s)
        if len(self._records) > _MOST_NAMES:
            del self._records[next(iter(self._records))]
        return rest_s

    def answered(self, name: str, now_s: float) -> None:
        """Takes a loss off a worker that has answered a request, and ends its rest."""
        if (record := self._records.get(name)) is not None:
            record.losses, record.until_s = record.losses - 1, min(now_s, record.until_s)
            if not record.losses:
                del self._records[name]

    def count(self, name: str) -> int:
        """Returns the number of losses that count."""
        record = self._records.get(name)
        return 0 if record is None else record.losses

    def rest_s(self, name: str, now_s: float) -> float:
        """Returns the seconds for which a worker still rests."""
        record = self._records.get(name)
        return 0.0 if record is None else max(0.0, record.until_s - now_s)


_MOST_NAMED = 3
_MOST_STARTING = 4096
_LONGEST_DOING = 40  # characters of an activity
_BUILDING = "building the engine"  # an engine may not say more


class Starting:
    """The workers that have requested the config but have not registered.

    What they say is shown as it is, made harmless and short.
    """

    def __init__(self) -> None:
        self._doing: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._doing)

    def note(self, name: str, doing: str) -> None:
        """Notes the activity of a worker, or that it was rejected; empty: it builds its engine."""
        known = name in self._doing or len(self._doing) < _MOST_STARTING
        if name and known and is_one_line(name, LONGEST_NAME):
            self._doing[name] = one_line(doing, _LONGEST_DOING)

    def described(
        self, workers: Iterable[Worker], expected: int | None, *, published: bool = True
    ) -> str:
        """Returns the number of registered workers, and what those do that are not ready.

        A worker process first starts and requests the run's config. Then it builds its engine,
        which may say what it does. Then it registers and loads weights. Any thread may call this.

        Args:
          workers: the registered ones.
          expected: number of workers that the launcher starts; None: unknown.
          published: True once there are weights to load.

        Returns:
          The description; empty once all expected workers are ready.
        """
        registered = list(workers)
        for worker in registered:
            self._doing.pop(worker.name, None)
        starting = dict(self._doing)
        doing: dict[str, list[str]] = {}
        for name, activity in sorted(starting.items()):
            doing.setdefault(activity or _BUILDING, []).append(name)
        if loading := sorted(worker.name for worker in registered if worker.version < 0):
            doing["loading weights" if published else "waiting for weights"] = loading
        missing = 0 if expected is None else expected - len(registered) - len(starting)
        if not doing and expected is not None and missing <= 0:
            return ""
        parts = [f"{_named(names)} {activity}" for activity, names in doing.items()]
        parts += [f"{missing} starting"] * (missing > 0)
        of = "" if expected is None else f" of {expected}"
        said = f" ({'; '.join(parts)})" if parts else ""
        return f"workers: {len(registered)}{of} registered{said}"


def _named(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
