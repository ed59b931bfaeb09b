"""The addresses at which the processes of a run listen, and access to them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rlax_plugin.config.base import PathText, Section
from rlax_plugin.errors import ConfigError


class Network(Section):
    """Addresses at which the processes of a run listen; so far only loopback is allowed."""

    host: str = Field(
        default="127.0.0.1", description="address on which the controller and the workers listen"
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="port of the controller; 0: any free port"
    )
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None,
        description="port on which the trainer serves /metrics for Prometheus; 0: any free port; "
        "null: metrics are not served. For workers use rlax serve --prometheus-port",
    )
    prometheus_token_file: PathText = Field(
        default="",
        description="file with the token that a scrape of the trainer must send (authorization: "
        "credentials_file in Prometheus): one line of at least 16 characters, readable only by its "
        "owner. Empty: every local user can read the page. For workers use rlax serve "
        "--prometheus-token-file",
    )

    serve_clients: bool = Field(
        default=False,
        description="true: workers of a running training also answer other programs by the service "
        "of their engine (JetStream's), with a token that each worker writes to a file; such calls "
        "share the slots with training",
    )

    @model_validator(mode="after")
    def _loopback(self) -> Network:
        if self.host not in ("127.0.0.1", "localhost"):
            raise ConfigError(
                "rlax.network.host",
                self.host,
                "must be a loopback address: runs over several machines are not built yet",
            )
        return self
