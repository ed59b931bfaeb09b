"""Secrets of a run that exists in a test only, the door of its servers, and their clients."""

from pathlib import Path

import grpc

from rlax_plugin.rpc.security.callers import Callers
from rlax_plugin.rpc.security.certificate import new_identity
from rlax_plugin.rpc.security.key_ring import token_path
from rlax_plugin.rpc.security.run_secrets import RunSecrets
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.rpc.transport.doors import Door, client_channel, listen
from rlax_plugin.weights.verification import Reading

SECRETS = RunSecrets(*(new_token() for _ in range(4)), new_identity(), Path())


def server(port: int = 0, callers: Callers | None = None) -> tuple[grpc.aio.Server, str]:
    """A server of the run's, and its address."""
    door = Door(callers or SECRETS.callers(), SECRETS.identity)
    return listen("127.0.0.1", port, door, "port")


class Called:
    """The endpoint of a worker that is never called."""

    address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.reading = Reading()

    def expect_trainer(self) -> Secret:
        return Secret(new_token(), SECRETS.identity.certificate)


def channel_to(address: str) -> grpc.Channel:
    """To a server of this user that says where its token is, such as ``rlax serve RUN``."""
    return client_channel(address, token_path(address))
