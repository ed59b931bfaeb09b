"""The secrets of a run, in its state directory: made once, kept for the processes that resume it.

Workers outlive a trainer process and recognise its successor by them. The controller and a separate
parameter server of the same run share them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.callers import Callers
from rlax_plugin.rpc.certificate import Identity, new_identity
from rlax_plugin.rpc.private_files import PrivacyError, read_private_json, write_private_json
from rlax_plugin.rpc.secret import Secret, new_token

log = logging.getLogger("rlax.controller")

_FILE, _WORKER_FILE = "secrets.json", "worker-token.json"


@dataclass(frozen=True, slots=True)
class RunSecrets:
    """The secrets of one run.

    Attributes:
      trainer: the token of the trainer's own process; no worker ever learns it.
      worker: the token with which a process may join the run as a worker.
      identity: key and certificate of the controller and the parameter server.
      worker_file: the file to hand to workers: their token, and the certificate.
    """

    trainer: str = field(repr=False)
    worker: str = field(repr=False)
    identity: Identity
    worker_file: Path

    @property
    def of_trainer(self) -> Secret:
        """The secret with which the trainer calls the parameter server."""
        return Secret(self.trainer, self.identity.certificate)

    @property
    def of_worker(self) -> Secret:
        """The secret with which a worker calls the controller and the parameter server."""
        return Secret(self.worker, self.identity.certificate)

    def callers(self) -> Callers:
        """The permitted callers of the run's own endpoints."""
        callers = Callers()
        callers.admit(self.trainer, "trainer")
        callers.admit(self.worker, "worker")
        return callers


def run_secrets(state_dir: Path) -> RunSecrets:
    """The secrets of a run, which are made if there are none.

    Secrets that others may have read are replaced, and workers that hold them have to join again.

    Raises:
      ConfigError: the files cannot be read or written.
    """
    path = state_dir / _FILE
    try:
        try:
            found = _read(path, state_dir)
        except PrivacyError as error:
            log.warning("%s %s: the run gets new secrets", path, error)
            write_private_json(path, _new())
            found = _read(path, state_dir)
        if found is None:
            with suppress(FileExistsError):  # a parameter server, or the trainer, was quicker
                write_private_json(path, _new(), replace=False)
            found = _read(path, state_dir)
        if found is None:
            raise ConfigError("rlax.state_dir", str(state_dir), f"{path} was removed just now")
        found.of_worker.write(found.worker_file)
    except PrivacyError as error:
        reason = f"{path} {error}: the file system must keep owners and modes of files"
        raise ConfigError("rlax.state_dir", str(state_dir), reason) from None
    except OSError as error:
        reason = f"{error.filename or path} cannot be used: {error.strerror}"
        raise ConfigError("rlax.state_dir", str(state_dir), reason) from None
    return found


def known_secrets(state_dir: Path) -> RunSecrets | None:
    """Returns the secrets of a run; None if it has none so far, or they cannot be read."""
    try:
        return _read(state_dir / _FILE, state_dir)
    except (PrivacyError, OSError):
        return None


def _new() -> dict[str, object]:
    return {"trainer": new_token(), "worker": new_token(), **asdict(new_identity())}


def _read(path: Path, state_dir: Path) -> RunSecrets | None:
    try:
        said = read_private_json(path)
    except FileNotFoundError:
        return None
    names = ("trainer", "worker", "key", "certificate")
    if not isinstance(said, Mapping) or not all(isinstance(said.get(n), str) for n in names):
        raise PrivacyError("is damaged: it must hold " + ", ".join(names))
    identity = Identity(said["key"], said["certificate"])
    found = RunSecrets(said["trainer"], said["worker"], identity, state_dir / _WORKER_FILE)
    if why := found.of_trainer.problem or found.of_worker.problem or identity.problem:
        raise PrivacyError(f"is damaged: {why}")
    return found
