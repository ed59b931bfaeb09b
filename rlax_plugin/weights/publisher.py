"""Turns fresh device buffers into a version that workers can pull, off the training thread.

A version goes two ways. Workers of this machine may get a copy in memory at once
(``memory_copies``). A ``PartWriter`` writes its files meanwhile, and once all are there the
parameter server announces them. Every worker can load a version from its files: at their
path, or received from the parameter server (``streams``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from rlax_plugin.base.concurrency.loop_thread import result_within
from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.errors import (
    ConfigError,
    DeadlineError,
    WeightsError,
    WeightsUnreadableError,
    WeightsUnwritableError,
)
from rlax_plugin.base.files import faults
from rlax_plugin.base.files.faults import FaultPoint
from rlax_plugin.base.liveness.activity import Activity, Failures, ends_at
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import BASE, SAFETENSORS, Canary, TensorSpec, VersionPart, WeightVersion
from rlax_plugin.ports.protocols import Arrays, WeightStore
from rlax_plugin.ports.training import NewWeights
from rlax_plugin.weights import converting
from rlax_plugin.weights.converting import Converter
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.memory_copies import MemoryCopies, OwnArrays
from rlax_plugin.weights.parameter_server import ParameterServer

log = logging.getLogger("rlax.controller")

_LATE_S = 1.0  # after the deadline, for a store that has deadlines and says more
_SLOW_S = 10.0  # after which a publication is slow, unless the one before took long
_LESS_OFTEN = 4.0  # times as long until it is said again, and as the publication before
_LOOK_S = 1.0
_LONGEST = 600  # characters of a line about it

_Prints = Mapping[str, Mapping[str, Any]]

PartWriter = Callable[[int, str, str, Arrays], None]
"""Writes a part of a version: (version, part, path, arrays); see ``WeightStore.save``."""


def by_one_host(store: WeightStore) -> PartWriter:
    """A writer of parts whose arrays are all on this host."""

    def write(version: int, part: str, path: str, arrays: Arrays) -> None:
        del version, part  # the path tells them apart
        store.save(path, arrays)

    return write


def fingerprints(arrays: Arrays) -> Mapping[str, Any]:
    """Fingerprints, computed on the arrays' device by a launched computation, or on the host."""
    if all(isinstance(a, np.ndarray) for a in arrays.values()):  # a trainer without JAX
        return fingerprint_numpy(arrays)
    from rlax_plugin.weights.device_fingerprint import fingerprint

    return fingerprint(arrays)


def of_this_host(weights: NewWeights, first: bool) -> Arrays | None:
    """The arrays of a version as readers in the trainer's own processes get them, by reference.

    With several hosts they are computed by all of them: each calls this in the same place.

    Args:
      first: True for the first version of this process, which takes the place of earlier ones.

    Returns:
      None: everyone reads the files of this version.
    """
    (arrays, *others) = weights.parts.values()
    if first or others or arrays is None:
        return None
    if all(getattr(array, "is_fully_addressable", True) for array in arrays.values()):
        return arrays
    from rlax_plugin.weights.host_arrays import on_this_host

    return on_this_host(arrays)


def described(name: str, path: str, arrays: Arrays, prints: Mapping[str, Any]) -> VersionPart:
    """The part of a version whose arrays have these fingerprints, see ``fingerprints``."""
    tensors = {
        n: TensorSpec(tuple(a.shape), str(np.dtype(a.dtype)), int(prints[n]))
        for n, a in arrays.items()
    }
    return VersionPart(name, path, tensors)


ASKING = ", which waits for the parameter server"
"""The end of the activity of a publisher while it is not the store that is waited for."""


class Announcer(Protocol):
    """The methods of a parameter server that a publisher calls, on the event loop."""

    async def writing(self, path: str) -> None:
        """Announces that a part of a version is about to be written to this path."""
        ...

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        """Makes a written version visible to workers.

        Args:
          restart: True if it is the first version of this process.
        """
        ...


class WriteTimes:
    """Hears how large versions are and how long writing takes. This one remembers nothing."""

    def weighs(self, size: int) -> None:
        """Takes the size of a weight version in bytes, before it is written."""

    def wrote(self, size: int, seconds: float) -> None:
        """Takes the seconds that writing this many bytes took."""

    def needed_s(self, name: str) -> float | None:
        """Returns the minimum of ``rlax.deadlines.<name>``; None: unknown. Any thread."""
        del name
        return None


class Publisher:
    """Writes versions, one after another, beside the training thread.

    A save that fails because of the disk or the network is repeated at another path, because the
    failed one may have left files behind.

    Args:
      loop: the controller's event loop.
      write: writes a part, with the other hosts if there are some.
      directory: parent of the parts' paths.
      announcer: makes written versions visible to workers.
      failures: receives errors.
      on_visible: called on the event loop once a worker can load a version, in memory or not.
      on_published: called on the event loop once a version is written, and every reader can load
        it; or it is not to be written.
      on_converted: called on the event loop with a version that has gained its converted part.
      deadline_s: time limit for one version.
      pace: measures the size and duration of versions, and estimates the time they need.
      near: the parameter server in this process, which knows the workers of this machine; None: no
        version is offered in memory.
      memory_bytes: largest version that is.
      on_unwritten: called on the event loop with a version that is not to be written, as only
        readers in the trainer's processes want it.

    Attributes:
      last_s: seconds that writing the last version took.
      last_bytes: bytes of the arrays that were written for it.
      last_written: its beginning and end by ``time.perf_counter``; None: there is none.
      activity: the version that is being published.
      unwritten: attempts to write that have failed.
      converter: writes converted parts; None: no version gets one.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        write: PartWriter,
        directory: str,
        announcer: Announcer,
        failures: Supervision,
        deadline_s: float,
        pace: WriteTimes | None = None,
        near: ParameterServer | None = None,
        memory_bytes: int = 0,
        on_visible: Callable[[WeightVersion], None] = lambda version: None,
        on_published: Callable[[WeightVersion], None] = lambda version: None,
        on_converted: Callable[[WeightVersion], None] = lambda version: None,
        on_unwritten: Callable[[WeightVersion], None] = lambda version: None,
    ):
        self._loop, self._write_part, self._directory = loop, write, directory.rstrip("/")
        self._announcer, self._failures = announcer, failures
        self._on_visible, self._on_published = on_visible, on_published
        self._on_converted, self._on_unwritten = on_converted, on_unwritten
        self.converter: Converter | None = None
        self._deadline_s, self._pace = deadline_s, pace or WriteTimes()
        self._near, self._memory = near, MemoryCopies(memory_bytes)
        self._doing = ""  # what takes its time, for a message
        self.activity, self.unwritten = Activity(), Failures()
        self._slow = 0.0, 0.0  # beginning of the publication, seconds until it is said to be slow
        self._closed, self._hung = threading.Event(), False
        self._worker = BackgroundWorker("publish", most_waiting=2)  # a version, and a conversion
        self._pending: Future[None] | None = None
        self._restart = True  # what the parameter server knows so far is another process's
        self._newest: dict[str, VersionPart] = {}  # parts of the last version, by name
        self._announced: WeightVersion | None = None  # that is on disk; the publisher's thread's
        self._late_conversion: Future[None] | None = None
        self._damaged: tuple[str, ...] = ()  # paths of a version whose files could not be converted
        self._held: tuple[NewWeights, _Prints] | None = None  # until the next step begins
        self._here: Arrays | None = None  # of the version that is being published
        self._to_write = set[int]()  # the versions that must be on disk whoever reads
        self.last_s, self.last_bytes = 0.0, 0
        self.last_written: tuple[float, float] | None = None

    def publish(self, weights: NewWeights) -> None:
        """Starts publishing; called on the training thread, because fingerprints are JAX work.

        One version is written at a time: the next call blocks until it is written.

        The canary is fetched from the device on the publisher's thread.

        Raises:
          WeightsError: a part is declared unchanged, but the previous version has no such part.
        """
        self.wait()
        unchanged = [name for name, arrays in weights.parts.items() if arrays is None]
        if missing := [name for name in unchanged if name not in self._newest]:
            reason = f"part {missing[0]} is not handed over, and the version before has none"
            raise WeightsError(f"version {weights.step}: {reason}")
        prints = {name: fingerprints(a) for name, a in weights.parts.items() if a is not None}
        if self._near is not None:
            self._here = of_this_host(weights, self._restart)
        self._held = weights, prints
        self._submit(weights, prints)

    def _submit(self, weights: NewWeights, prints: _Prints) -> None:
        self._pending = self._worker.submit(self._run, weights, prints)
        self._pending.add_done_callback(self._ended)

    def will_write(self, *steps: int) -> None:
        """Has versions written even if only the trainer's processes read them; any thread."""
        self._to_write.update(steps)

    def holds(self, version: int) -> bool:
        """True if ``again`` would publish this version."""
        held = self._held
        return held is not None and held[0].step == version and None not in held[0].parts.values()

    def again(self) -> None:
        """Publishes all parts of the newest version again, at another path and under its number.

        Called on the training thread, in place of ``publish``, if it ``holds`` the version. It does
        not while the next step is computed, nor if a part was handed over with an earlier version.
        """
        assert self._held is not None
        self.wait()
        self._newest, self._restart = {}, True
        self._submit(*self._held)

    def forget(self) -> None:
        """Lets go of the buffers of the newest version, apart from those still to be written."""
        self._held = None

    def _ended(self, written: Future[None]) -> None:
        if not written.cancelled() and (error := written.exception()) is not None:
            self._failures.fail_from_thread(error)  # at once: the trainer waits for it much later

    def _run(self, weights: NewWeights, prints: _Prints) -> None:
        if weights.canary is not None:  # it is there once the weights are computed
            weights = weights._replace(canary=_on_host(weights.step, weights.canary))
        started = time.perf_counter()
        self._begins(weights.step)
        self.last_bytes = self._write(weights, prints)
        self.last_s = (ended := time.perf_counter()) - started
        self.last_written = started, ended
        on_disk = self._announced is not None and self._announced.version == weights.step
        if on_disk and self.converter is not None and self.converter.wanted:
            arrays = [of_part for of_part in weights.parts.values() if of_part is not None]
            whole = len(arrays) == len(weights.parts)
            self._begins(weights.step)
            self._convert(dict(ChainMap(*map(dict, arrays))) if whole else None)
        self.activity.ends()

    def _begins(self, step: int) -> None:
        ends = ends_at("rlax.deadlines.weights_s", self._deadline_s)
        self.activity.begins(f"publishing version {step}", ends)

    def adopt(self, version: WeightVersion) -> None:
        """Takes a version that is announced already as the newest; called before any other."""
        self._announced = version

    def convert_newest(self) -> None:
        """Has the newest version converted, unless it is; on the event loop, at any time."""
        newest, late = self._announced, self._late_conversion
        if newest is None or newest.converted or (late is not None and not late.done()):
            return
        if newest.paths == self._damaged:
            return
        self._late_conversion = self._worker.submit(self._run_late_conversion)
        self._late_conversion.add_done_callback(self._ended)

    def _run_late_conversion(self) -> None:
        if self._announced is None or self._announced.converted:  # meanwhile, as it was published
            return
        self._begins(self._announced.version)
        self._convert(None)
        self.activity.ends()

    def _convert(self, arrays: Arrays | None) -> None:
        """Writes the converted part of the newest version, and announces it once more.

        Args:
          arrays: its variables; None: they are read from its files.
        """
        version, converter = self._announced, self.converter
        assert version is not None and converter is not None
        number, tensors = version.version, dict[str, TensorSpec]()

        def write(path: str) -> None:
            tensors.update(converter.write(version, arrays, path))

        part = VersionPart(
            converting.PART, self._new_path(number, converting.PART), tensors, SAFETENSORS
        )
        try:
            path, took_s = self._save(number, part, write)
        except ConfigError as error:
            self._loop.call_soon_threadsafe(converter.refuse, str(error))
            return
        except WeightsError as error:  # workers that read these files find it, too
            if arrays is not None:  # it is not of files
                raise
            self._damaged = version.paths
            where = ", ".join(version.paths)
            log.error(
                "version %d is not converted, its files are wrong: %s (%s)", number, error, where
            )
            return
        # The time is that of a whole version, however little of it was written before.
        size = sum(part.nbytes for part in version.parts)
        self._loop.call_soon_threadsafe(self._pace.wrote, size, took_s)
        part = dataclasses.replace(part, path=path)
        self._asks(number, f"announcing to the parameter server version {number}, converted")
        self._announced = dataclasses.replace(version, converted=(part,))
        self._on_loop(self._announcer.publish(self._announced, False))
        self._loop.call_soon_threadsafe(self._on_converted, self._announced)

    def _write(self, weights: NewWeights, prints: _Prints) -> int:
        """Hands a version over on every way; returns the bytes of the arrays that were written."""
        step, _, canary = weights
        fresh = {name: arrays for name, arrays in weights.parts.items() if arrays is not None}
        parts = {
            name: described(name, self._new_path(step, name), fresh[name], prints[name])
            if name in fresh
            else self._newest[name]
            for name in weights.parts
        }
        self._pace.weighs(sum(part.nbytes for part in parts.values()))
        offered = self._offer(WeightVersion(step, step, tuple(parts.values()), canary), fresh)
        alone = offered == [True] and self._near and not self._near.watched_elsewhere
        if alone and step not in self._to_write:
            # Nobody else reads it, and a run is not continued from it.
            version = WeightVersion(step, step, tuple(parts.values()), canary)
            for tell in (self._on_unwritten, self._on_published):
                self._loop.call_soon_threadsafe(tell, version)
            return 0
        for name, arrays in fresh.items():
            write = functools.partial(self._write_arrays, step, name, arrays)
            path, took_s = self._save(step, parts[name], write)
            self._loop.call_soon_threadsafe(self._pace.wrote, _nbytes(arrays), took_s)
            parts[name] = dataclasses.replace(parts[name], path=path)
        faults.reached(FaultPoint.WEIGHTS_WRITTEN)
        self._asks(step, f"announcing to the parameter server version {step}")
        version = WeightVersion(step, step, tuple(parts.values()), canary)
        self._on_loop(self._make_visible(version, bool(offered)))
        self._newest, self._announced = parts, version
        faults.reached(FaultPoint.WEIGHTS_PUBLISHED)
        return sum(map(_nbytes, fresh.values()))

    def _new_path(self, step: int, name: str) -> str:
        # A run that is continued writes the version it starts from once more.
        path = f"{self._directory}/{step:08d}-{time.time_ns():x}"
        return path if name == BASE else f"{path}-{name}"

    def _offer(self, version: WeightVersion, fresh: Mapping[str, Arrays]) -> list[bool]:
        """Hands a version over before it is written.

        The first one of a process is not: it takes the place of versions of an earlier process.

        Returns:
          True if readers in the trainer's processes can have it, and False if others of this
          machine can; nothing if it cannot be handed over before.
        """
        self._memory.close()  # the copy of the version before
        here, self._here = self._here, None
        part, near = version.parts[0], self._near
        if near is None or here is None:
            return []
        offered = list[bool]()
        for inside, watched in ((True, near.watched_inside), (False, near.watched_here)):
            if not watched:
                continue
            if inside:
                copy = OwnArrays.give(here, version.version)
            else:
                copy = self._memory.add(fresh[part.name])
            if copy is not None:
                self._asks(version.step, f"offering version {version.step} in memory")
                in_memory = (dataclasses.replace(part, memory=copy),)
                shown = dataclasses.replace(version, parts=in_memory)
                self._on_loop(self._offered(near, shown, inside=inside, first=not offered))
                offered.append(inside)
        return offered

    async def _offered(
        self, near: ParameterServer, version: WeightVersion, *, inside: bool, first: bool
    ) -> None:
        await near.offer(version, inside)
        if first:
            self._on_visible(version)

    def _write_arrays(self, step: int, name: str, arrays: Arrays, path: str) -> None:
        self._write_part(step, name, path, arrays)

    def _save(
        self, step: int, part: VersionPart, write: Callable[[str], None]
    ) -> tuple[str, float]:
        """Has a part written to a new path; returns the path, and the seconds that it took."""
        pauses, tries, name = Pauses(self._deadline_s), 0, part.name
        while True:
            path = self._new_path(step, name) if tries else part.path
            self._asks(step, f"listing the path of version {step}")
            self._on_loop(self._announcer.writing(path))
            faults.reached(FaultPoint.WEIGHTS_LISTED)
            self._doing = f"writing version {step} to {path}"
            self.activity.goes_on(f"publishing version {step}")
            tries += 1
            try:
                return path, self._save_once(write, path)
            except (WeightsUnwritableError, WeightsUnreadableError, OSError) as error:
                self._doing = (
                    f"writing version {step} ({tries} failed attempts, the last with: {error})"
                )
                self.unwritten.failed(f"writing version {step}: {error}")
                if pauses.over:
                    raise self._late() from error
                pause_s = pauses.next_s()
                log.error("weights were not written, trying again in %g s: %s", pause_s, error)
            if self._closed.wait(pause_s):
                raise self._late()

    def _save_once(self, write: Callable[[str], None], path: str) -> float:
        """Has a part written; returns the seconds that it took."""
        began_s = time.perf_counter()
        # Nobody else notices: the trainer waits for a batch meanwhile, for much longer.
        watch = threading.Timer(self._deadline_s + _LATE_S, self._hangs)
        watch.daemon = True
        watch.start()
        try:
            write(path)
        except DeadlineError as error:
            if error.needed_s is not None:  # the store could tell
                raise
            self._doing = error.what
            raise self._late() from error
        finally:
            watch.cancel()
        return time.perf_counter() - began_s

    def _hangs(self) -> None:
        """Reports that an attempt to write has taken too long; called on a thread of its own."""
        self._hung = True
        self._failures.fail_from_thread(self._late())

    def _asks(self, step: int, doing: str) -> None:
        """Says that the parameter server, and not the store, is waited for."""
        self._doing = doing
        self.activity.goes_on(f"publishing version {step}{ASKING}")

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        result_within(work, self._loop, self._deadline_s, lambda _: self._late())

    async def _make_visible(self, version: WeightVersion, offered: bool) -> None:
        await self._announcer.publish(version, self._restart)
        self._restart = False
        if not offered:
            self._on_visible(version)
        self._on_published(version)

    def _late(self) -> DeadlineError:
        needed_s = self._pace.needed_s("weights_s")
        return DeadlineError(self._doing, self._deadline_s, "rlax.deadlines.weights_s", needed_s)

    def slow(self, now: float) -> str:
        """Returns a line about a publication that takes long, now and then; empty otherwise.

        Args:
          now: Unix time.
        """
        if (doing := self.activity.doing) is None:
            return ""
        since, next_s = self._slow
        if since != doing.since:
            since, next_s = doing.since, max(_SLOW_S, _LESS_OFTEN * self.last_s)
        took_s = now - since
        late = took_s >= next_s
        self._slow = since, _LESS_OFTEN * took_s if late else next_s
        if not late:
            return ""
        what, failed = self._doing, self.unwritten.recent
        if failed is not None and "failed attempts" not in what:  # it is being tried again just now
            what += f" ({failed.count} failed attempts, the last with: {failed.what})"
        return (
            f"{doing.what.removesuffix(ASKING)} takes {took_s:.0f} s so far: {what}; {doing.ends}"
        )

    async def show_slow(self, note: Callable[[str], None]) -> None:
        """Shows a publication that takes long, such as of weights that cannot be written.

        Runs until cancelled. The trainer waits for a batch meanwhile, and would not say it.
        """
        while True:
            if line := self.slow(time.time()):
                note(one_line(line, _LONGEST))
            await asyncio.sleep(_LOOK_S)

    def wait(self) -> None:
        """Returns once all versions handed over are visible; raises the error if one failed.

        Writing has ``weights_s``, and so has each conversion, before it and after it.
        """
        while self._pending is not None:
            before = self.activity.doing
            try:
                self._pending.result(self._deadline_s)
            except TimeoutError:
                if self._pending.done():
                    raise
                doing = self.activity.doing
                if doing is None or (before is not None and doing.since == before.since):
                    raise self._late() from None
            else:
                self._pending = None

    def close(self) -> None:
        """Waits, with a time limit, for a version that is being written.

        A failing save is not repeated any more, and one that hangs is abandoned.
        """
        self._closed.set()
        self.forget()
        self._here = None
        ended = self._worker.end(0.0 if self._hung else self._deadline_s)
        if ended:  # else its thread may be making a copy
            self._memory.close()
            OwnArrays.forget()


def _nbytes(arrays: Arrays) -> int:
    return sum(int(array.nbytes) for array in arrays.values())


def _on_host(step: int, canary: Canary) -> Canary:
    """The canary with numpy log-probs.

    Raises:
      WeightsError: some are not finite, so a correct worker could not be told from a broken one.
    """
    logprobs = np.asarray(canary.logprobs, np.float32)
    if not np.isfinite(logprobs).all():
        broken = int((~np.isfinite(logprobs)).sum())
        raise WeightsError(
            f"version {step}: {broken} of {logprobs.size} log-probs of its canary are not finite"
        )
    return dataclasses.replace(canary, logprobs=logprobs)
