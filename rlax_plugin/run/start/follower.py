"""``rlax train --host I``: another host than 0 of a trainer that is spread over several."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.errors import DeadlineError, RlaxError, TrainingError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.marks import announced
from rlax_plugin.base.liveness.watchdog import Watchdog
from rlax_plugin.base.text.terminal import quiet
from rlax_plugin.base.types import Descent, HostPlace
from rlax_plugin.build import registry_for
from rlax_plugin.config.identity import host_hash, sample_hash
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.ports.training import Trainer
from rlax_plugin.reward.functions.copies import read_functions
from rlax_plugin.rollout.worker.joining import RunToJoin
from rlax_plugin.rpc.security.run_secrets import token_file as file_of_role
from rlax_plugin.rpc.security.secret import MissingSecretError, read_secret
from rlax_plugin.run.controller.chosen import Builder
from rlax_plugin.run.hosts.following import EndedError, FollowedPort, HostZero, OwnChunks
from rlax_plugin.run.programs.colocated import worker_of_host
from rlax_plugin.run.start import descent
from rlax_plugin.run.start.holder import holder
from rlax_plugin.run.start.leading import check_hosts, check_shared
from rlax_plugin.run.start.run_directory import (
    finished,
    make_directories,
    run_directory,
    state_directory,
    weights_directory,
)
from rlax_plugin.run.start.signals import Signals
from rlax_plugin.run.state.endpoints import endpoints
from rlax_plugin.weights.memory_copies import OwnArrays
from rlax_plugin.weights.shared_writes import shared_writer

log = logging.getLogger("rlax.hosts")

INTERRUPTED = 130
ENDED = 3
"""Status of a host that ended because host 0 did, which says why."""

_ARRAYS_BYTES = 1024  # of one position of a batch, in all arrays and updates of one order
_OTHER_BYTES = 64 << 20
_CLOSE_S = 30.0  # for the engine to close, and for the controller to hear of it


def log_file(state_dir: Path, host: int) -> Path:
    """The file with the output of a host; that of host 0 has everything that the run logs."""
    return state_dir / "logs" / ("trainer.log" if host == 0 else f"host-{host}.log")


def follow(
    config_path: str,
    overrides: Sequence[str],
    wanted: str | None,
    place: HostPlace,
    *,
    controller: str = "",
    token_file: str = "",
) -> int:
    """Runs a host until host 0 ends training.

    Args:
      wanted: see ``train``; the same as on host 0.
      place: of this host, from 1.
      controller: host:port of host 0's controller; "": found in the run's state directory.
      token_file: host-token.json of the run; "": found there as well.

    Returns:
      0 when training is complete, 130 when it was stopped and can be continued, ``ENDED`` when host
      0 has ended it.

    Raises:
      RlaxError: host 0 rejects this host or cannot be reached, or training failed.
    """
    config = resolve(config_path, overrides)
    registry = registry_for(config.section)
    files = RunFiles(run_directory(config.maxtext))
    state_dir = state_directory(config.section, files)
    config, _ = read_functions(config, files, state_dir)
    section = config.section
    origin = descent.decide(files, wanted, registry, section, config.maxtext)
    last_step = int(config.maxtext["steps"]) // section.objective.updates_per_step
    if finished(files, last_step, section.evaluation.problems > 0) is not None:
        print("the run is complete")  # and so is what host 0 does
        return 0
    builder = Builder.of(config, state_dir, run_url=files.url, hosts=place)
    trainer = builder.trainer()
    check_hosts(place, trainer, section)
    store = shared_writer(builder.weight_store(), section)
    if origin is not None:
        descent.start(trainer, section.trainer.name, origin)
    log_path = log_file(state_dir, place.index)
    make_directories(files, state_dir, section, config.maxtext, log_path.name)
    directory, deadline_s = weights_directory(section, files), section.deadlines.weights_s

    def chunks(zero: HostZero) -> OwnChunks:
        return OwnChunks(zero, store, directory, deadline_s)

    with quiet(log_path), announced(state_dir, "host", str(place.index)) as mark, Watchdog(mark):
        seeker = Seeker(
            config, state_dir, place, controller, token_file, shared=files, origin=origin
        )
        return obey(trainer, seeker, chunks)


def obey(trainer: Trainer, seeker: Seeker, chunks: Callable[[HostZero], OwnChunks]) -> int:
    """Finds host 0 and follows it until it ends training; returns the exit status.

    Args:
      chunks: makes the writer of this host's chunks of weights.

    Raises:
      RlaxError: host 0 rejects this host or cannot be reached, or training failed.
    """
    thread = LoopThread()
    zero = seeker.join(thread)
    writer = chunks(zero)
    worker = OwnWorker(zero, seeker.config, thread.loop) if zero.generates else None
    port = FollowedPort(zero, writer, None if worker is None else worker.devices)

    def stop() -> bool:
        log.warning("a signal arrived: this host tells host 0 to stop")
        zero.stop()
        return True

    try:
        with Signals(stop):
            trainer.follow(port)
            port.finish()
            trainer.leave()
    except EndedError as error:
        log.error("%s", error)
        return ENDED
    except Exception as error:
        log.exception("this host fails")
        _tell(zero, error, seeker.section.deadlines.rpc_s)
        raise
    finally:
        if worker is not None:
            worker.close()
        writer.close()
        zero.close()
        thread.close()
    return INTERRUPTED if port.stopped else 0


class OwnWorker:
    """The worker in this process, on the devices of this host; it starts at once.

    Its failure is that of this host, see ``HostZero.failure``.

    Args:
      loop: of the connection to host 0.

    Attributes:
      devices: those of this host.
    """

    def __init__(self, zero: HostZero, config: ResolvedConfig, loop: asyncio.AbstractEventLoop):
        self.devices, self._zero, self._loop = Devices(), zero, loop
        self._life: asyncio.Task[None] | None = None
        self._over: Future[None] = Future()
        content = sample_hash(config.content)
        run = RunToJoin(zero.address, config.section, content, zero.secret)
        work = worker_of_host(run, config, self.devices, zero.start, zero.place.index)
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._life = self._loop.create_task(work)
        self._life.add_done_callback(self._ended)

    def _ended(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled():
            self._zero.failure = life.exception()
        self._over.set_result(None)

    def close(self) -> None:
        """Ends the worker, if it has not ended; waits for its engine to close."""
        self._loop.call_soon_threadsafe(lambda: self._life and self._life.cancel())
        wait([self._over], _CLOSE_S)
        OwnArrays.forget()


def _tell(zero: HostZero, error: Exception, deadline_s: float) -> None:
    """Tells host 0 of a failure, if it can still be reached."""
    try:
        zero.stop(str(error) or type(error).__name__).result(deadline_s)
    except (RlaxError, TimeoutError) as unreachable:
        log.warning("host 0 was not told: %s", unreachable)


class Seeker:
    """Finds host 0, which may take its time to start, and joins it.

    Args:
      config: of the run; its hash must be that of host 0's.
      state_dir: local directory of the run.
      place: of this host.
      controller: host:port of host 0's controller; "": found in ``state_dir``.
      token_file: host-token.json of the run; "": found there as well.
      shared: the run's directory, which host 0 must see as well.
      origin: of the first weights; host 0 must have recorded the same.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        state_dir: Path,
        place: HostPlace,
        controller: str = "",
        token_file: str = "",
        *,
        shared: RunFiles,
        origin: Descent | None = None,
    ):
        self.config, self.section = config, config.section
        self._state_dir, self._place, self._controller = state_dir, place, controller
        self._token_file = Path(token_file) if token_file else file_of_role(state_dir, "host")
        self._hash = host_hash(config.content)
        self._shared, self._origin = shared, origin
        self._process = secrets.token_hex(8)  # a reply to an earlier try may have been lost

    def join(self, thread: LoopThread) -> HostZero:
        """Returns a connection to host 0, which has accepted this host.

        Args:
          thread: of the connection.

        Raises:
          ConfigError: host 0 rejects it, or the token file cannot be used.
          DeadlineError: there was no host 0 within ``startup_s``.
        """
        startup_s = self.section.deadlines.startup_s
        pauses, why = Pauses(startup_s, 2.0), "it has not started"
        while True:
            began_s = time.monotonic()
            try:
                return self._tried(thread)
            except (TrainingError, MissingSecretError) as error:
                why = str(error)
            if pauses.over:
                # Here host 0 may still be reading prompts, which has a deadline of its own.
                if self._controller or holder(self._state_dir) is None:
                    what = f"reaching host 0 ({why})"
                    raise DeadlineError(what, startup_s, "rlax.deadlines.startup_s")
                pauses = Pauses(startup_s, 2.0)
            log.info("host 0 was not reached after %.1f s: %s", time.monotonic() - began_s, why)
            time.sleep(pauses.next_s())

    def _tried(self, thread: LoopThread) -> HostZero:
        secret = read_secret(self._token_file, "--token-file")
        address = self._controller
        if not address:
            found = endpoints(self._state_dir)
            if found is None:
                raise TrainingError("it has not written its address yet")
            address = found.controller
        section = self.section
        most_bytes = section.batch_rows * section.row_tokens * _ARRAYS_BYTES + _OTHER_BYTES
        zero = HostZero(self._place, address, secret, section.deadlines, thread, most_bytes)
        try:
            start = zero.join(self._hash, section.plugins, self._process)
            self._check_shared(zero, start)
        except BaseException:
            zero.close()
            raise
        return zero

    def _check_shared(self, zero: HostZero, start: str) -> None:
        try:
            check_shared(self._shared, start, self._origin)
        except RlaxError as error:
            _tell(zero, error, self.section.deadlines.rpc_s)  # it counts on this host already
            raise
