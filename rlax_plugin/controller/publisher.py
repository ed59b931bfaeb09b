"""From fresh device buffers to a version that workers can pull, off the training thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from rlax_plugin.errors import DeadlineError
from rlax_plugin.protocols import Arrays, WeightStore
from rlax_plugin.types import TensorSpec, WeightVersion


class Publisher:
    """Writes versions, one after the other, beside the training thread.

    Args:
      loop: the controller's event loop.
      store: where the bytes go.
      directory: parent of the versions' paths.
      announce: makes a written version visible to workers (on the event loop).
      on_published: called on the event loop once a version is visible.
      on_error: called on the event loop with what went wrong.
      deadline_s: for one version.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        store: WeightStore,
        directory: str,
        announce: Callable[[WeightVersion], Awaitable[None]],
        on_published: Callable[[WeightVersion], None],
        on_error: Callable[[BaseException], None],
        deadline_s: float,
    ):
        self._loop, self._store, self._directory = loop, store, directory.rstrip("/")
        self._announce, self._on_published, self._on_error = announce, on_published, on_error
        self._deadline_s = deadline_s
        self._pending: Future[None] | None = None
        self.last_s = 0.0

    def publish(self, step: int, arrays: Arrays) -> None:
        """Called on the training thread, which alone launches JAX work: the fingerprint is one.

        One version is written at a time: the next one waits here.
        """
        self.wait()
        prints: dict[str, Any]
        if all(isinstance(a, np.ndarray) for a in arrays.values()):  # a trainer without JAX
            from rlax_plugin.fingerprint import fingerprint_numpy

            prints = fingerprint_numpy(dict(arrays))
        else:
            from rlax_plugin.fingerprint import fingerprint

            prints = fingerprint(dict(arrays))
        pending = self._pending = Future()
        # A daemon, unlike an executor's threads: a store that hangs cannot keep the process alive.
        threading.Thread(
            target=self._run, args=(pending, step, arrays, prints), name="publish", daemon=True
        ).start()

    def _run(
        self, pending: Future[None], step: int, arrays: Arrays, prints: dict[str, Any]
    ) -> None:
        started = time.perf_counter()
        try:
            self._write(step, arrays, prints)
        except BaseException as error:  # noqa: BLE001  raised by wait, and stops the run at once
            pending.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                self._loop.call_soon_threadsafe(self._on_error, error)
        else:
            self.last_s = time.perf_counter() - started
            pending.set_result(None)

    def _write(self, step: int, arrays: Arrays, prints: dict[str, Any]) -> None:
        # A run that is continued writes the version it starts from once more.
        path = f"{self._directory}/{step:08d}-{time.time_ns():x}"
        self._store.save(path, arrays)
        tensors = {
            name: TensorSpec(tuple(a.shape), str(np.dtype(a.dtype)), int(prints[name]))
            for name, a in arrays.items()
        }
        version = WeightVersion(version=step, step=step, path=path, tensors=tensors)
        done = asyncio.run_coroutine_threadsafe(self._make_visible(version), self._loop)
        try:
            done.result(self._deadline_s)
        except TimeoutError:
            done.cancel()
            raise self._late() from None

    async def _make_visible(self, version: WeightVersion) -> None:
        await self._announce(version)
        self._on_published(version)

    def _late(self) -> DeadlineError:
        what = "publishing a weight version"
        return DeadlineError(what, self._deadline_s, "rlax.deadlines.weights_s")

    def wait(self) -> None:
        """Returns once what was handed over is visible; raises what went wrong."""
        if self._pending is not None:
            try:
                self._pending.result(self._deadline_s)
            except TimeoutError:
                raise self._late() from None
            self._pending = None

    def close(self) -> None:
        """Waits for the version that is being written, if any, but not for ever."""
        if self._pending is not None:
            concurrent.futures.wait([self._pending], self._deadline_s)
