"""The kubectl commands that start a rendered run, in their order."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rlax_plugin.commands.kubernetes.options import Options
from rlax_plugin.commands.kubernetes.places import (
    FILES,
    HOST_SECRETS,
    SECRET,
    TLS_FILES,
    TOKEN,
    Places,
)
from rlax_plugin.config.network import Tls
from rlax_plugin.rpc.operator_certificate import OperatorIdentity, check_shown_by_clients

Group = tuple[str, tuple[str, ...]]
"""Commands, after the reason for them."""


def certificates(options: Options) -> Tls:
    """Returns the files of ``--certs``, with which the hosts of a trainer verify each other.

    Raises:
      ConfigError: they cannot be used, or are not for the address of host 0.
    """
    tls = Tls(**{key: str(Path(options.certs) / file) for key, file in TLS_FILES.items()})
    OperatorIdentity(tls, [f"{options.name}-trainer"])
    check_shown_by_clients(tls)
    return tls


class Commands:
    """The commands of one run.

    Args:
      directory: of the manifests.
    """

    def __init__(self, options: Options, where: Places, directory: Path):
        self._options, self._where, self._directory = options, where, directory
        self._name = options.name

    def all(self) -> list[Group]:
        """All commands, each group with the reason for it."""
        trainer, workers = (str(self._directory / file) for file in FILES)
        config = self._secret("config", list(self._where.files))
        first = ("The config, and the files of its functions.", (config,))
        last = ("The workers.", (self._line("apply", "-f", workers),))
        if self._options.hosts > 1:
            return [first, *self._hosts(trainer), last]
        return [first, *self._one_host(trainer), last]

    def _one_host(self, trainer: str) -> list[Group]:
        name, token = self._name, self._directory / SECRET / TOKEN
        path = f"{self._where.state}/{TOKEN}"
        read = self._line("exec", f"{name}-trainer-0", "--container", "trainer", "--", "cat", path)
        return [
            (
                "The trainer. It is ready when workers can register with it.",
                (
                    self._line("apply", "-f", trainer),
                    self._line("rollout", "status", f"statefulset/{name}-trainer", "--timeout=30m"),
                ),
            ),
            (
                "The token that lets workers in, which the trainer has made at its first start.",
                (
                    f"(umask 077 && {read} > {shlex.quote(str(token))})",
                    self._secret("worker-token", [TOKEN]),
                ),
            ),
        ]

    def _hosts(self, trainer: str) -> list[Group]:
        files = {file: Path(self._options.certs) / file for file in TLS_FILES.values()}
        return [
            (
                "The secrets of the run, and the token in them that lets workers in.",
                (
                    self._secret("secrets", HOST_SECRETS),
                    self._secret("worker-token", [TOKEN]),
                ),
            ),
            (
                "The certificates by which the hosts verify each other.",
                (self._secret_of("certs", files),),
            ),
            (
                "The hosts of the trainer. Workers wait until host 0 lets them register.",
                (self._line("apply", "-f", trainer),),
            ),
        ]

    def _line(self, *words: str) -> str:
        namespace = self._options.namespace
        return shlex.join(("kubectl", *(("--namespace", namespace) if namespace else ()), *words))

    def _secret(self, of: str, files: Sequence[str]) -> str:
        return self._secret_of(of, {key: self._directory / SECRET / key for key in files})

    def _secret_of(self, of: str, files: dict[str, Path]) -> str:
        given = [f"--from-file={key}={path}" for key, path in files.items()]
        return self._line("create", "secret", "generic", f"{self._name}-{of}", *given)
