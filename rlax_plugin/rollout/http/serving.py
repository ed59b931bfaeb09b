"""Opens the HTTP door of a worker, where that is safe."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from pathlib import Path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.processes.python import python_command
from rlax_plugin.config.addresses import bracketed, is_loopback
from rlax_plugin.config.network import Place, Tls
from rlax_plugin.rollout.http.app import LIMITS, HttpDoor
from rlax_plugin.rollout.http.policy import Policy
from rlax_plugin.rollout.worker.worker_metrics import CallMetrics
from rlax_plugin.rpc.security.callers import Callers, with_token
from rlax_plugin.rpc.security.operator_certificate import TLS, OperatorIdentity
from rlax_plugin.rpc.transport.http import HttpServer

log = logging.getLogger("rlax.http")

PORT = "--http-port"
_POLL_S = 0.05


def check_http(place: Place, tls: Tls, port: int | None) -> bool:
    """True if HTTP can be served: on loopback, or elsewhere with a certificate.

    Args:
      port: None if HTTP is not asked for; then a line in the log says why there is none.

    Raises:
      ConfigError: it is asked for, and cannot be served.
    """
    if is_loopback(place.host):
        return True
    try:
        if not tls.given:
            reason = f"keys and prompts would leave {place.host} without encryption: set {TLS}"
            raise ConfigError(PORT, port, reason)
        OperatorIdentity(tls, [place.reached_at])
    except ConfigError as error:
        if port is not None:
            raise
        log.warning("OpenAI's API is not served over HTTP: %s", error)
        return False
    return True


class ServedHttp:
    """A policy on a port of its own, until it is closed; a context manager.

    Plain HTTP on loopback; elsewhere with the certificate of ``rlax.network.tls``, whose files are
    read once.

    Args:
      callers: those with the role client may ask.
      needs_key: False if ``callers`` lets everybody in.

    Attributes:
      url: base URL for clients of OpenAI's API.

    Raises:
      ConfigError: the port is taken.
    """

    def __init__(
        self,
        policy: Policy,
        place: Place,
        tls: Tls,
        port: int | None,
        callers: Callers,
        calls: CallMetrics,
        *,
        needs_key: bool,
    ):
        def policy_of(key: str | None) -> Policy | None:
            caller = callers.of(() if key is None else with_token(key))
            return policy if caller is not None and "client" in caller.roles else None

        self._name = policy.name
        self._door = HttpDoor(policy_of, calls.ended, needs_key)
        files = None if is_loopback(place.host) else (tls.certificate, tls.key)
        try:
            self._server = HttpServer(self._door, place.host, port or 0, LIMITS, files)
        except OSError as error:
            reason = f"cannot be used on {place.host}: {error.strerror}; 0 means any free port"
            raise ConfigError(PORT, port, reason) from error
        self._trusted = shlex.join(["--cacert", tls.ca]) + " " if files else ""
        scheme = "https" if files else "http"
        self.url = f"{scheme}://{bracketed(place.reached_at)}:{self._server.port}/v1"

    async def drained(self, within_s: float) -> None:
        """Returns once no request is being answered, or after ``within_s``."""
        try:
            async with asyncio.timeout(within_s):
                while self._door.answering:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            log.warning("requests over HTTP did not end within %g s", within_s)

    def example(self, token_file: Path | None, prompt: str | list[int]) -> str:
        """Commands of a shell (bash) that set the variables of OpenAI's clients, and ask.

        The key is no argument of a process, which other users could see.
        """
        key = "echo none"
        if token_file is not None:
            code = 'import json, sys; print(json.load(open(sys.argv[1]))["token"])'
            key = shlex.join(python_command("-c", code, str(token_file)))
        body = json.dumps({"model": self._name, "prompt": prompt})
        header = """-H @<(printf 'Authorization: Bearer %s' "$OPENAI_API_KEY")"""
        return (
            f"read OPENAI_API_KEY < <({key})\n"
            f"export OPENAI_API_KEY OPENAI_BASE_URL={self.url}\n"
            f"curl {self._trusted}$OPENAI_BASE_URL/completions {header} "
            f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
        )

    def __enter__(self) -> ServedHttp:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.close()
