"""The addresses at which the processes of a run listen, and access to them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.addresses import HOST_FORMS, is_host, is_loopback, is_wildcard
from rlax_plugin.config.base import PathText, Section

HOST = "rlax.network.host"
ADVERTISED = "rlax.network.advertised_host"
PROMETHEUS_TOKEN = "rlax.network.prometheus_token_file"


@dataclass(frozen=True, slots=True)
class Place:
    """The host on which a process listens, and the one by which others reach it.

    Attributes:
      host: an address of this machine.
      advertised: name or address that others connect to; "" if it is ``host``.
    """

    host: str = "127.0.0.1"
    advertised: str = ""

    @property
    def reached_at(self) -> str:
        """The host that others connect to."""
        return self.advertised or self.host

    def check(self, host_key: str, advertised_key: str) -> None:
        """Checks the form of both.

        Args:
          host_key: the setting of ``host``, for messages.
          advertised_key: the setting of ``advertised``.

        Raises:
          ConfigError: one of them is no host, or others could not connect to it.
        """
        if not is_host(self.host):
            raise ConfigError(
                host_key, self.host, f"must be an address of this machine: {HOST_FORMS}"
            )
        if self.advertised:
            if not is_host(self.advertised) or is_wildcard(self.advertised):
                reason = f"must be the host by which others reach this machine: {HOST_FORMS}"
                raise ConfigError(advertised_key, self.advertised, reason)
        elif is_wildcard(self.host):
            reason = (
                f"must be set, because {host_key} = {self.host} stands for all addresses of this "
                "machine: give the name or address by which others reach it, such as "
                f"{socket.gethostname()}"
            )
            raise ConfigError(advertised_key, None, reason)


class Tls(Section):
    """Certificates of your own for the run's endpoints; without them, the run makes its own.

    All three files are needed together. They may be replaced while the run goes on.
    """

    certificate: PathText = Field(
        default="",
        description="file with the certificate (PEM) of the controller and of a separate parameter "
        "server, and those between it and the authority; it must name the host that workers "
        "connect to. rlax certs make makes one",
    )
    key: PathText = Field(
        default="", description="file with its private key (PEM), readable only by its owner"
    )
    ca: PathText = Field(
        default="",
        description="file with the authority's certificate (PEM), with which the trainer and the "
        "workers verify the endpoints; it becomes part of the workers' token file",
    )

    @property
    def given(self) -> bool:
        """True if the endpoints have certificates of the operator."""
        return bool(self.certificate)

    def check_together(self) -> None:
        files = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        missing = [name for name, path in files.items() if not path]
        if missing and len(missing) < len(files):
            others = " and ".join(f"rlax.network.tls.{name}" for name in files if files[name])
            raise ConfigError(f"rlax.network.tls.{missing[0]}", None, f"must be set with {others}")


class Network(Section):
    """Addresses at which the processes of a run listen."""

    host: str = Field(
        default="127.0.0.1",
        description="address of this machine on which the controller listens: a loopback address "
        "for workers of this machine, another one for workers of other machines, 0.0.0.0 or :: for "
        "all of its addresses. For workers use rlax serve --host",
    )
    advertised_host: str = Field(
        default="",
        description="name or address by which workers reach the controller; empty: "
        "rlax.network.host. It must be set if that is 0.0.0.0 or ::",
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
        description="file with the token that a scrape of the trainer must send (authorization."
        "credentials_file in Prometheus): one line of at least 16 characters, readable only by its "
        "owner. Empty: every local user can read the page, which is possible only if "
        "rlax.network.host is a loopback address. For workers use rlax serve "
        "--prometheus-token-file",
    )

    serve_clients: bool = Field(
        default=False,
        description="true: workers of a running training also answer other programs by the service "
        "of their engine (JetStream's), with a token that each worker writes to a file; such calls "
        "share the slots with training",
    )

    allow_other_versions: bool = Field(
        default=False,
        description="true: accept workers with other versions of rlax-plugin, jax, maxtext or a "
        "plug-in than the run, with a warning; false: reject them, and say what to install",
    )
    tls: Tls = Tls()

    @property
    def place(self) -> Place:
        """The hosts of the controller's port."""
        return Place(self.host, self.advertised_host)

    def check_together(self) -> None:
        self.place.check(HOST, ADVERTISED)
        if self.prometheus_port is not None and not self.prometheus_token_file:
            check_page_is_local(self.host, PROMETHEUS_TOKEN)


def check_page_is_local(host: str, key: str) -> None:
    """Checks that a page without a token can be read on this machine only.

    Args:
      key: the setting of the token's file.

    Raises:
      ConfigError: other machines could read it.
    """
    if not is_loopback(host):
        reason = (
            f"must be given, because {host} can be reached from other machines, and the page for "
            "Prometheus would have no lock"
        )
        raise ConfigError(key, None, reason)
