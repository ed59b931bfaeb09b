"""Evaluations during training, each at one version and on one worker that is pinned to it."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.run.evaluation.evaluator import Evaluator
from rlax_plugin.run.evaluation.result import Evaluated, record, recorded, step_name
from rlax_plugin.run.state.recorder import Recorder
from rlax_plugin.weights.client import ParameterServerClient

log = logging.getLogger("rlax.controller")


class Display(Protocol):
    """Shows messages and results of evaluations; see ``Dashboard``."""

    def message(self, text: str) -> None: ...

    def estimates(self, title: str, found: Evaluated) -> None: ...


class PeriodicEvaluation:
    """Evaluates every ``every``-th version as soon as it is published, one at a time.

    A lease keeps the version, and ``Fleet.pin`` keeps a worker at it; the other workers continue to
    generate for training. With only one worker, an evaluation waits for a second one until the next
    evaluation is due. A skipped or failed evaluation is reported and counted; training continues.

    Args:
      last_step: last step of the run; its version is evaluated after training, not here.
      supervision: runs the evaluations; only an error in this class is a failure of the run.
      display: shows results and skipped evaluations.

    Attributes:
      skipped: number of evaluations that were due but were skipped or failed.
    """

    def __init__(
        self,
        *,
        every: int,
        last_step: int,
        evaluator: Evaluator,
        fleet: Fleet,
        client: ParameterServerClient,
        recorder: Recorder,
        files: RunFiles,
        supervision: Supervision,
        display: Display,
    ):
        self._every, self._last_step, self._evaluator = every, last_step, evaluator
        self._fleet, self._client = fleet, client
        self._recorder, self._files = recorder, files
        self._supervision, self._display = supervision, display
        self._running: asyncio.Task[None] | None = None
        self._version = -1  # of the running one
        self._metrics: dict[str, float] = {}
        self.skipped = 0

    def published(self, version: int) -> None:
        """Evaluates a version that has become visible, if it is due for evaluation."""
        if not self._every or not 0 < version < self._last_step or version % self._every:
            return
        if self._running is not None:
            if not self._fleet.lacks_pinned_worker:
                self._skip(version, f"that of step {self._version} is still running")
                return
            self._running.cancel()
            self._skip(self._version, "no second worker was ready")
        self._version = version
        self._running = self._supervision.spawn(self._evaluate(version, self._running))

    def _skip(self, step: int, reason: str) -> None:
        self.skipped += 1
        self._display.message(f"evaluation of step {step} is skipped: {reason}")

    async def _evaluate(self, version: int, before: asyncio.Task[None] | None) -> None:
        if before is not None:  # it is being cancelled
            await asyncio.wait({before})
        try:
            name = step_name(version)
            # It may have ended before the run was interrupted and went back to a checkpoint.
            found = await self._recorder.call(recorded, self._files, name, version)
            if found is None:
                found = await self._measured(version)
                await self._recorder.call(record, self._files, name, found)
        except Exception as error:
            log.exception("evaluation of step %d failed", version)
            self._skip(version, str(error) if isinstance(error, RlaxError) else repr(error))
        else:
            self._ended(found)
        finally:
            if self._version == version:
                self._running = None

    async def _measured(self, version: int) -> Evaluated:
        async with self._client.acquire(version):
            self._fleet.pin(version)
            try:
                return await self._evaluator.run(version, pinned=True)
            finally:
                self._fleet.unpin()

    def _ended(self, found: Evaluated) -> None:
        self._metrics = found.metrics()
        self._display.estimates(f"evaluation of step {found.version}", found)

    def take_metrics(self) -> dict[str, float]:
        """Returns metrics of evaluations that ended since the last call; empty if none did."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    async def finish(self) -> None:
        """Waits for the running evaluation, which may now use every worker.

        Training must have ended. Each group that is still to be generated has its own deadlines.
        """
        self._fleet.training = False
        if self._running is not None:
            await asyncio.wait({self._running})

    async def cancel(self) -> None:
        """Cancels the running evaluation; a run resumed from an earlier step repeats it."""
        if self._running is not None:
            self._running.cancel()
            if (await asyncio.wait({self._running}))[0].pop().cancelled():
                self._skip(self._version, "the run is stopped")
