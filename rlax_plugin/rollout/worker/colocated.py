"""A worker in the trainer's own process: its requests, answers and weights are Python objects.

It is a member of the run like all others: it registers, sends heartbeats and follows the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing

from rlax_plugin.base.types import Attempt, Request, SideSpec
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rollout.fleet.links import CallError, Heard, WorkerLink
from rlax_plugin.rollout.fleet.replies import all_contributors
from rlax_plugin.rollout.worker.rollout_service import RolloutService, check
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.rpc.transport.wire import Told
from rlax_plugin.weights.verification import Reading


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
    """A worker in the controller's process, on its event loop, from a registration to its loss."""

    def __init__(self, service: RolloutService, engine: RolloutEngine, section: RlaxSection):
        self._service, self._engine, self._section = service, engine, section

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
        contributors = {r.key: all_contributors(r, name) for r in requests}
        async with aclosing(self._service.answers(requests, self)) as answers:
            async for key, samples, given_up in answers:
                if given_up is not None:
                    yield Heard(key, given_up=tuple(given_up))
                    continue
                by = zip(samples, contributors[key], strict=False)
                yield Heard(key, [Told(0, dataclasses.replace(s, workers=w)) for s, w in by])

    async def give_up(self, unwanted: Iterable[Attempt], oldest: int, within_s: float) -> None:
        """See ``WorkerLink``."""
        del within_s
        self._service.give_up(set(unwanted), oldest)

    async def close(self, grace_s: float | None) -> None:
        """See ``WorkerLink``; at once, as what is said is read without delay."""
        del grace_s
        self._service.drop(self)
