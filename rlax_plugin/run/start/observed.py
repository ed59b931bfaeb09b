"""Lets others see what a run does: its mark, its watchdog, and the file with its status."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from rlax_plugin.base.concurrency.loop_thread import result_within
from rlax_plugin.base.errors import DeadlineError
from rlax_plugin.base.liveness.activity import Activity, Failures
from rlax_plugin.base.liveness.ending import forget_ending, record_ending
from rlax_plugin.base.liveness.machine import MachineMetrics, own_figures, process_figures
from rlax_plugin.base.liveness.marks import announced, forget_ended
from rlax_plugin.base.liveness.run_status import ControllerStatus, RunStatus
from rlax_plugin.base.liveness.status_file import EVERY_S, StatusFile
from rlax_plugin.base.liveness.watchdog import Watchdog
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.run.controller.controller import Controller
from rlax_plugin.run.controller.status import StatusCollector
from rlax_plugin.run.display.waiting import Waiting
from rlax_plugin.weights.publisher import Publisher

_ANSWER_S = 0.5  # for the event loop to say what it knows


class ObservedRun:
    """Shows a run to other processes of its user, within ``with``.

    Args:
      state_dir: of the run.
      waiting: the phase that the run waits for while it does not train.
      removed: see ``StatusFile``.

    Attributes:
      trainer: activity of the trainer's thread; publisher: that of the publisher's.
      ledger: the wait for another process that has the ledger locked.
      unwritten: attempts of the publisher that have failed.
    """

    def __init__(self, state_dir: Path, waiting: Waiting, removed: Callable[[], object]):
        self._state_dir, self._waiting, self._removed = state_dir, waiting, removed
        self._closing = ExitStack()
        self._controller: tuple[StatusCollector, asyncio.AbstractEventLoop] | None = None
        self._machine = MachineMetrics()
        self._newest: ControllerStatus | None = None
        self.trainer, self.publisher, self.unwritten = Activity(), Activity(), Failures()
        self.ledger = Activity()

    def __enter__(self) -> Self:
        forget_ended(self._state_dir)
        forget_ending(self._state_dir)
        enter = self._closing.enter_context
        mark = enter(announced(self._state_dir, "trainer"))
        self._watchdog = enter(Watchdog(mark))
        enter(StatusFile(self._state_dir, self.status, self._removed))
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        record_ending(self._state_dir, error)  # before the mark of this process goes
        self._closing.close()

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches the controller's event loop from now on."""
        self._watchdog.watch_loop("the event loop of the controller", loop)

    def controller_runs(
        self,
        collector: StatusCollector,
        loop: asyncio.AbstractEventLoop,
        trainer: Activity,
        publisher: Publisher,
    ) -> None:
        """Adds what the controller knows; ``collector`` lives on ``loop``."""
        self._controller = collector, loop
        self.trainer, self.publisher = trainer, publisher.activity
        self.unwritten = publisher.unwritten

    def controller_ended(self) -> None:
        """Keeps the controller's last status; its event loop ends."""
        self._controller = None

    def status(self) -> RunStatus:
        """Returns the present status; any thread but the event loop's own may call.

        It also takes the figures of the machine that the next steps report.
        """
        if (known := self._controller) is not None:
            self._take_machine(known[0].controller)
        return self._status(self._of_controller())

    def _take_machine(self, controller: Controller) -> None:
        fleet = controller.fleet  # a worker in this process is part of the trainer's figures
        workers = [one for one in fleet.workers.values() if one.process not in fleet.here]
        pids = [pid for pool in controller.generation.pools for pid in pool.pids]
        rewards = ((pid, process_figures(pid)) for pid in pids)
        controller.machine = self._machine.take(
            {
                "trainer": [(os.getpid(), own_figures())],
                "rewards": rewards,
                "workers": [(worker.identity, worker.figures) for worker in workers],
            }
        )

    async def status_on_loop(self) -> RunStatus:
        """Returns the present status, on the controller's event loop."""
        known = self._controller
        return self._status(None if known is None else await known[0].status())

    def _status(self, controller: ControllerStatus | None) -> RunStatus:
        return RunStatus(
            at=time.time(),
            pid=os.getpid(),
            every_s=EVERY_S,
            phase=self._waiting.doing,
            trainer=self.trainer.doing,
            publisher=self.publisher.doing,
            unwritten=self.unwritten.recent,
            ledger=self.ledger.doing,
            controller=controller,
        )

    def _of_controller(self) -> ControllerStatus | None:
        """Asks the event loop; if it does not answer, its last answer stays."""
        if (known := self._controller) is None:
            return self._newest
        collector, loop = known
        with suppress(DeadlineError, RuntimeError):  # it stands still, or the run ends
            self._newest = result_within(collector.status(), loop, _ANSWER_S, _late)
        return self._newest


class StatusService(rpc.RunServicer):
    """Answers the user's commands on other machines; lives on the controller's event loop."""

    def __init__(self, observed: ObservedRun):
        self._observed = observed

    async def Status(self, request: pb.StatusRequest, context: object) -> pb.StatusReply:
        status = await self._observed.status_on_loop()
        return pb.StatusReply(status=status.model_dump_json().encode())


def _late(given_s: float) -> DeadlineError:
    return DeadlineError("the status of the controller", given_s, "")
