"""Base of trackers: a thread for each, the ids of their runs, and the description of a run.

``Tracker.log`` is called on the controller's event loop, which must not wait for an import, a disk,
a database or a network. So a plug-in describes the destination of its metrics as a ``Sink``, and
``BackgroundTracker`` creates, feeds and closes it on its own thread.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.errors import BacklogError, ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.secrets import stripped
from rlax_plugin.config import Seconds, Section
from rlax_plugin.config.identity import leaves
from rlax_plugin.ports.protocols import BuildContext, Tracker

log = logging.getLogger("rlax.trackers")

_ids = threading.Lock()  # trackers of one kind keep theirs in one file
QUEUE_STEPS = 1000  # that may wait for a sink; further ones are lost until it has caught up


class TrackerConfig(Section):
    """Options that every background tracker has."""

    flush_s: Annotated[Seconds, Field(le=45)] = Field(  # trackers have 60 s to close
        default=20.0,
        description="time limit for writing or uploading the remaining data when the run ends",
    )


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The description of a run that a sink receives.

    Attributes:
      name: the last part of its directory.
      directory: local directory, see ``BuildContext.run_dir``.
      files: the run's own directory, which a resumed run finds again.
      config: the merged config, MaxText's keys and ``rlax:``, without secrets and without the
        trackers.
      last_step: the run's last RL step; 0: unknown.
    """

    name: str
    directory: Path
    files: RunFiles
    config: dict[str, Any]
    last_step: int

    @classmethod
    def of(cls, context: BuildContext) -> TrackedRun:
        """Returns the description of a context's run."""
        config = {} if context.config is None else dict(context.config.content)
        section = config.get("rlax") or {}
        shown = {key: value for key, value in section.items() if key != "trackers"}
        updates = context.section.objective.updates_per_step
        return cls(
            name=Path(context.run_url or context.run_dir).name,
            directory=context.run_dir,
            files=RunFiles(context.run_url or context.run_dir),
            config=stripped(config | ({"rlax": shown} if section else {})),
            last_step=int(config.get("steps") or 0) // updates,
        )

    def settings(self) -> dict[str, Any]:
        """Returns the config as dotted keys and values."""
        return dict(leaves(self.config))

    def run_id(self, tracker: str, where: str, create: Callable[[], str]) -> str:
        """Returns the id of this run in a tracker, which stays the same when the run is resumed.

        Args:
          where: the tracker's scope of the id, such as a project; each scope has its own id.
          create: creates an id, the first time.
        """
        name, where = f"trackers/{tracker}.json", stripped(where)
        with _ids:
            known = self.files.get_json(name) or {}
            if where not in known:
                known[where] = create()
                self.files.put_json(name, known)
            return known[where]


class Sink(Protocol):
    """A destination of metrics, used only on the tracker's thread; may be slow and may raise.

    Attributes:
      last_step: the last step that it already has from an earlier process; 0: none. A resumed run
        logs the steps after its checkpoint again; steps that are here already are left out.
    """

    last_step: int

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self, complete: bool) -> None:
        """Finishes writing and releases the destination.

        Args:
          complete: True if the run's last step was logged.
        """
        ...


@dataclass(slots=True)
class _Opened:
    """A sink, the run's last step, and the newest step that the sink was given."""

    sink: Sink
    last_step: int
    newest: int


class BackgroundTracker(Tracker):
    """Hands metrics to a sink on its own thread.

    A sink that cannot be opened stops the run at once. One that fails later does not: the run's
    ``metrics.jsonl`` has every step, and ``close`` reports those that the sink lacks.

    Args:
      name: name of the tracker, for messages.
      open_sink: opens the sink; called on the thread, and the right place for slow imports.
      flush_s: maximum seconds that ``close`` waits.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[TrackedRun], Sink],
        context: BuildContext,
        flush_s: float,
    ):
        self._name, self._open_sink, self._context = name, open_sink, context
        self._flush_s = flush_s
        self._logged = self._written = 0  # steps
        self._failure: RlaxError | None = None  # why the sink could not be opened
        self._error: Exception | None = None  # the last one of a write, or of closing
        self._opened: _Opened | None = None  # of the thread
        self._loop = _running_loop()
        self._worker = BackgroundWorker(f"tracker {name}", QUEUE_STEPS)
        self._worker.submit(self._open)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queues a step.

        Raises:
          RlaxError: the sink could not be opened.
        """
        self._raise_failure()
        self._logged += 1
        with suppress(BacklogError):  # the sink has not caught up: this step is lost to it
            self._worker.submit(self._write, step, dict(metrics))

    def close(self) -> str | None:
        """Waits for queued steps, at most ``flush_s``.

        Returns:
          A sentence that says which steps were lost; None if none were.
        """
        in_time = self._worker.finish(self._close, self._flush_s)
        lost = self._logged - self._written
        if self._failure is not None or (in_time and not lost and self._error is None):
            return None
        why = [] if in_time else [f"it took longer than flush_s = {self._flush_s:g} s"]
        if lost:
            why.append(
                f"{lost} of {self._logged} steps were not written; metrics.jsonl and "
                "evaluation/ have them"
            )
        if self._error is not None:
            why.append(f"the last error: {_told(self._error)}")
        told = f"tracker {self._name}: {'; '.join(why)}"
        log.warning(told)
        return told

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- on the thread -------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            run = TrackedRun.of(self._context)
            sink = self._open_sink(run)
        except Exception as error:  # noqa: BLE001  raised on the event loop
            self._failure = RlaxError(f"tracker {self._name} cannot be opened: {_told(error)}")
            self._failure.__cause__ = error
            if self._loop is not None and self._loop.is_running():
                self._loop.call_soon_threadsafe(self._raise_failure)
        else:
            self._opened = _Opened(sink, run.last_step, sink.last_step)

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        if (opened := self._opened) is None:
            return
        sink = opened.sink
        if step <= sink.last_step or self._try(sink.write, step, metrics):
            self._written += 1
        opened.newest = max(opened.newest, step)

    def _close(self) -> None:
        if (opened := self._opened) is not None:
            self._try(opened.sink.close, opened.newest >= opened.last_step)

    def _try(self, work: Callable[..., None], *args: Any) -> bool:
        try:
            work(*args)
        except Exception as error:
            if self._error is None:  # the first one only: there may be one per step
                log.warning("tracker %s fails", self._name, exc_info=error)
            self._error = error
            return False
        return True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Returns the event loop on which a failure is raised; None outside a run."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, RlaxError) else f"{type(error).__name__}: {error}"


def require(tracker: str, *packages: str) -> None:
    """Rejects a tracker whose packages are not installed; the extra has the tracker's name.

    Raises:
      ConfigError: a package is missing.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            reason = (
                f"needs the package {package}, which is not installed: "
                f"pip install '.[{tracker}]' in a checkout"
            )
            raise ConfigError("rlax.trackers", tracker, reason)
