"""A worker in the trainer's own process: its requests, answers and weights are Python objects.

It is a member of the run like all others: it registers, sends heartbeats and follows the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Attempt, Request, SideSpec
from rlax_plugin.config import Deadlines, RlaxSection
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rollout.fleet.links import CallError, Heard, WorkerLink
from rlax_plugin.rollout.fleet.replies import all_contributors
from rlax_plugin.rollout.worker.rollout_service import RolloutService, check
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.rpc.transport.wire import Told
from rlax_plugin.weights.verification import Reading


def longest_call(devices: Devices, deadlines: Deadlines) -> tuple[float, str]:
    """Seconds that the trainer waits for a call of the engine to end, and the key that says so."""
    # Workers elsewhere may have filled the batch while this engine is still compiling.
    names = ("group_s", "startup_s") if devices.compiles() else ("group_s",)
    return max((getattr(deadlines, name), f"rlax.deadlines.{name}") for name in names)


class OwnProcess:
    """The place of a worker that nobody calls from outside; see ``Endpoint``.

    Args:
      address: of the controller, in whose process it is.
      certificate: of the controller.
    """

    def __init__(self, address: str, certificate: str):
        self.address, self._certificate = address, certificate
        self.reading = Reading()

    def expect_trainer(self) -> Secret:
        """Makes the secret of a registration, by which the controller knows its sender."""
        return Secret(new_token(), self._certificate)


class ColocatedLink(WorkerLink):
    """A worker in the controller's process, on its event loop, from a registration to its loss.

    Args:
      devices: those that the trainer and the engine share.
    """

    def __init__(
        self,
        service: RolloutService,
        engine: RolloutEngine,
        section: RlaxSection,
        devices: Devices,
    ):
        self._service, self._engine, self._section = service, engine, section
        self._devices = devices

    async def generate(
        self, requests: Sequence[Request], name: str, side: Callable[[], Mapping[str, SideSpec]]
    ) -> AsyncGenerator[Heard]:
        """See ``WorkerLink``."""
        has = self._engine.capabilities
        try:
            for request in requests:
                check(request, self._section, has.vocabulary, has.side)
        except ValueError as error:
            raise CallError(str(error), "rejected") from error
        asked = {request.key: request for request in requests}
        async with aclosing(self._service.answers(requests, self)) as answers:
            async for key, samples, given_up in answers:
                if given_up is not None:
                    yield Heard(key, given_up=tuple(given_up))
                    continue
                request = asked.get(key)
                if request is None or tuple(s.seed for s in samples) != request.seeds:
                    what = f"{name}: {key} was answered with samples that were not requested"
                    raise WorkerError(what)
                by = zip(samples, all_contributors(request, name), strict=True)
                yield Heard(key, [Told(0, dataclasses.replace(s, workers=w)) for s, w in by])

    async def give_up(self, unwanted: Iterable[Attempt], oldest: int, within_s: float) -> None:
        """See ``WorkerLink``."""
        del within_s
        self._service.give_up(set(unwanted), oldest)

    def paused_s(self) -> float:
        """See ``WorkerLink``."""
        return self._devices.trained_s

    async def close(self, grace_s: float | None) -> None:
        """See ``WorkerLink``; at once, as what is said is read without delay."""
        del grace_s
        self._service.drop(self)
