"""The endpoints of a process that serves an engine: gRPC, and a page for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.network import Place
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.rollout.worker.worker_metrics import WorkerMetrics
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.callers import Caller, Callers, Role
from rlax_plugin.rpc.security.certificate import new_identity
from rlax_plugin.rpc.security.key_ring import on_ring
from rlax_plugin.rpc.security.secret import Secret, new_token, read_secret
from rlax_plugin.rpc.transport.doors import Door, listen
from rlax_plugin.rpc.transport.prometheus import Exporter
from rlax_plugin.weights.verification import Reading

log = logging.getLogger("rlax.worker")

NAME = "RLAX_WORKER"
"""Environment variable with the worker's name, for its engine and libraries."""

Clients = Literal["none", "token", "open"]
"""Other programs that may call a worker: none, those with its token, or, on loopback, all."""


@dataclass(frozen=True, slots=True)
class Scrapes:
    """A page for Prometheus.

    Attributes:
      port: 0 takes any free one; None: no page.
      token: see ``Exporter``.
    """

    port: int | None = None
    token: str = ""


class Endpoint:
    """A worker's endpoints: gRPC and, if requested, a page for Prometheus.

    A context manager that closes the page; its user must stop ``server``.

    Args:
      place: the hosts to listen on and to be reached at.
      port: 0 takes any free one.
      clients: programs that may call the services that the engine adds.
      client_roles: roles of the clients' token.
      token_file: path to write the clients' token to; None: the place at which this user's
        commands find it.

    Attributes:
      server: has its port at once and listens from ``start`` on.
      address: host:port, with the host that others reach it at.
      callers: the permitted callers.
      clients_file: the file that clients need to call; None: there are no clients, they need no
        token, or it could not be written to the place at which this user's commands find it.
      calls: counts calls, for the page.
      reading: durations of the newest weights; exported with the engine's figures.

    Raises:
      ConfigError: a port is taken.
    """

    def __init__(
        self,
        place: Place,
        engine: RolloutEngine,
        *,
        name: str,
        port: int = 0,
        scrapes: Scrapes = Scrapes(),
        clients: Clients = "none",
        client_roles: tuple[Role, ...] = ("client",),
        token_file: Path | None = None,
    ):
        self._engine, self._client_roles = engine, client_roles
        self._service: RolloutService | None = None
        self.reading = Reading()
        self._exporter: Exporter | None = None
        metrics = WorkerMetrics(name, self._figures)
        self.calls = metrics.interceptor
        interceptors = () if scrapes.port is None else (self.calls,)
        self._identity = None if clients == "open" else new_identity()
        self.callers = Callers(Caller(frozenset({"client"})) if clients == "open" else None)
        self._tokens: list[str] = []  # with which the trainer may call, the newest last
        self._services = () if clients == "none" else tuple(engine.services)
        door = Door(self.callers, self._identity, self._services)
        self.server, self.address = listen(
            place.host, port, door, "--port", interceptors, advertised=place.advertised
        )
        self._closing = contextlib.ExitStack()
        self.clients_file: Path | None = None
        if clients == "token":
            self.clients_file = self._let_clients_in(token_file)
        if scrapes.port is not None:
            self._exporter = Exporter(
                place, scrapes.port, "--prometheus-port", metrics.registry, token=scrapes.token
            )
            log.info("metrics for Prometheus: %s", self._exporter.url)

    def _secret(self) -> Secret:
        assert self._identity is not None, "an open port has no secrets"
        return Secret(new_token(), self._identity.certificate)

    def _let_clients_in(self, token_file: Path | None) -> Path | None:
        secret = self._secret()
        self.callers.admit(secret.token, *self._client_roles)
        if token_file is None:
            return self._closing.enter_context(on_ring(self.address, secret))
        try:
            if os.path.lexists(token_file) and not _is_token_file(token_file):
                reason = "exists already, and is no token file of this user's: name a new file"
                raise ConfigError("--token-file", str(token_file), reason)
            secret.write(token_file)
        except OSError as error:
            reason = f"cannot be written: {error.strerror}"
            raise ConfigError("--token-file", str(token_file), reason) from error
        return token_file

    def expect_trainer(self) -> Secret:
        """Makes the secret of a registration, with which the trainer may call from now on.

        The secret of the previous registration stays valid, because a call may be on its way.
        """
        secret = self._secret()
        self.callers.admit(secret.token, "trainer")
        self._tokens.append(secret.token)
        if len(self._tokens) > 2:
            self.callers.dismiss(self._tokens.pop(0))
        return secret

    def _figures(self) -> dict[str, float]:
        draining = self._service is not None and self._service.draining
        own = {"weight_version": self._engine.version, "draining": draining}
        return {**self._engine.health(), **self.reading.figures(), **own}

    async def start(self, service: RolloutService) -> asyncio.Future[object]:
        """Listens, with our service and those that the engine adds.

        Returns:
          A future that is done once the engine's services answer, possibly after long imports.
        """
        self._service = service
        rpc.add_RolloutServicer_to_server(service, self.server)
        answers: Future[object] = Future()
        if self._services:
            answers = self._engine.add_services(self.server)
        else:
            answers.set_result(None)
        await self.server.start()
        return asyncio.wrap_future(answers)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()
        if self._exporter is not None:
            self._exporter.close()


def _is_token_file(path: Path) -> bool:
    """True if a server may have written the file, so another server may replace it."""
    if path.is_symlink():
        return False
    with contextlib.suppress(ConfigError):
        read_secret(path, "--token-file")
        return True
    return False
