"""The progress of a worker's open requests, for its heartbeats, and the loading of weights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Key, Request
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_to_proto


@dataclass(slots=True)
class _Seen:
    """Observed progress of a request: the engine's newest figure, and its number of changes."""

    figure: Any = None
    moves: int = 0


class ProgressReport:
    """Counts, once per heartbeat, the number of times each open request has progressed.

    Of an engine that does not report the progress of each request only the total is known: if it
    generates or delivers anything, or loads weights, which may keep it from generating, all of its
    requests count as progressing. A request whose weights are being loaded progresses: the loading
    has deadlines of its own.
    """

    def __init__(self, engine: RolloutEngine):
        self._engine = engine
        self._seen: dict[tuple[Key, int], _Seen] = {}

    def take(
        self,
        requests: Iterable[Request],
        health: Mapping[str, float],
        *,
        delivered: int,
        loading: bool,
    ) -> list[pb.Progress]:
        """The progress that the next heartbeat reports.

        Args:
          requests: the open requests.
          health: the engine's figures.
          delivered: number of answers and reports so far.
          loading: True while weights are being loaded.
        """
        own, unfinished = self._engine.progress(), self._engine.unfinished()
        common = (*_generated(health), delivered)
        seen: dict[tuple[Key, int], _Seen] = {}
        for request in requests:
            key = request.key, request.attempt
            one = seen[key] = self._seen.get(key, _Seen())
            figure = common if own is None else own.get(key)
            waits = own is None or request.needs_version > self._engine.version
            one.moves += figure != one.figure or (loading and waits)
            one.figure = figure
        self._seen = seen
        return [
            pb.Progress(
                key=key_to_proto(key),
                attempt=attempt,
                moves=one.moves,
                unfinished=unfinished.get((key, attempt)),
            )
            for (key, attempt), one in seen.items()
        ]


class EngineBeat:
    """Says for how long an engine has generated nothing although requests are open.

    Args:
      busy: returns True if requests are open.
    """

    def __init__(self, engine: RolloutEngine, busy: Callable[[], bool]):
        self._engine, self._busy = engine, busy
        self._figure: tuple[float | None, ...] = ()
        self._since_s = time.monotonic()

    def still_s(self) -> float:
        """Returns the seconds; any thread may call, but only one."""
        try:
            figure = _generated(self._engine.health())
        except WorkerError:  # it has died, which others say
            return 0.0
        if figure != self._figure or not self._busy():
            self._figure, self._since_s = figure, time.monotonic()
        return time.monotonic() - self._since_s


async def load_within(
    engine: RolloutEngine,
    loading: Coroutine[Any, Any, None],
    deadline_s: float,
    *,
    while_generating: bool,
    paused_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Awaits the loading of a version, including verification and use.

    Args:
      while_generating: True if ``deadline_s`` restarts as long as the engine generates anything,
        because its running samples must end first.
      paused_s: returns the seconds, since any moment, in which the engine could do nothing because
        the trainer of the same process computed; ``deadline_s`` is without them.

    Raises:
      TimeoutError: it took longer.
      WeightsError: see ``take_version``.
    """
    load = asyncio.ensure_future(loading)
    generated, paused_before_s = _generated(engine.health()), paused_s()
    left_s = deadline_s
    try:
        while not (await asyncio.wait({load}, timeout=left_s))[0]:
            left_s, paused_before_s = (now_s := paused_s()) - paused_before_s, now_s
            if left_s > 0:
                continue
            before, generated = generated, _generated(engine.health())
            if not while_generating or generated == before:
                raise TimeoutError
            left_s = deadline_s
        load.result()
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)


def _generated(health: Mapping[str, float]) -> tuple[float | None, ...]:
    """Figures that grow while an engine generates anything."""
    return tuple(health.get(name) for name in ("tokens_total", "steps_total"))
