"""The secrets of a run, in its state directory: made once, kept for the processes that resume it.

Workers outlive a trainer process and recognise its successor by them. The controller and a separate
parameter server of the same run share them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.callers import Callers
from rlax_plugin.rpc.certificate import Identity, new_identity
from rlax_plugin.rpc.private_files import PrivacyError, read_private_json, write_private_json
from rlax_plugin.rpc.secret import Secret, new_token, read_secret

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
      earlier: the worker token before the last rotation; "" if it is not accepted any more.
      earlier_until: Unix time in seconds until which it is accepted.
      authority: PEM, by which clients verify the operator's certificates; "": there are none, and
        clients compare the certificate of ``identity``.
    """

    trainer: str = field(repr=False)
    worker: str = field(repr=False)
    identity: Identity
    worker_file: Path
    earlier: str = field(default="", repr=False)
    earlier_until: float = 0.0
    authority: str = ""

    @property
    def of_trainer(self) -> Secret:
        """The secret with which the trainer calls the parameter server."""
        return Secret(self.trainer, self.identity.certificate, self.authority)

    @property
    def of_worker(self) -> Secret:
        """The secret with which a worker calls the controller and the parameter server."""
        return Secret(self.worker, self.identity.certificate, self.authority)

    def callers(self) -> Callers:
        """The permitted callers of the run's own endpoints."""
        callers = Callers()
        callers.admit(self.trainer, "trainer")
        callers.admit(self.worker, "worker")
        if self.earlier and self.earlier_until > time.time():
            callers.admit(self.earlier, "worker")
        return callers


def run_secrets(state_dir: Path, authority: str = "") -> RunSecrets:
    """The secrets of a run, which are made if there are none.

    Secrets that others may have read are replaced, and workers that hold them have to join again.

    Args:
      authority: see ``RunSecrets``; it becomes part of the workers' file.

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
        found = replace(found, authority=authority)
        found.of_worker.write(found.worker_file)
    except PrivacyError as error:
        reason = f"{path} {error}: the file system must keep owners and modes of files"
        raise ConfigError("rlax.state_dir", str(state_dir), reason) from None
    except OSError as error:
        reason = f"{error.filename or path} cannot be used: {error.strerror}"
        raise ConfigError("rlax.state_dir", str(state_dir), reason) from None
    return found


def known_secrets(state_dir: Path, authority: str = "") -> RunSecrets | None:
    """Returns the secrets of a run; None if it has none so far, or they cannot be read."""
    try:
        found = _read(state_dir / _FILE, state_dir)
    except (PrivacyError, OSError):
        return None
    return None if found is None else replace(found, authority=authority)


def secrets_file(state_dir: Path) -> Path:
    """The file of a run's secrets, which no other process of the run writes than ``rotate``."""
    return state_dir / _FILE


def rotate(state_dir: Path, old_s: float) -> RunSecrets:
    """Gives a run a new worker token, in its secrets and in the workers' file.

    Args:
      old_s: seconds for which the token before is still accepted.

    Raises:
      ConfigError: the run has no usable secrets, or a file cannot be written.
    """
    path = state_dir / _FILE
    try:
        found = _read(path, state_dir)
        if found is None:
            raise ConfigError("RUN", None, f"has no secrets yet ({path}): start it first")
        until = time.time() + old_s
        made = replace(found, worker=new_token(), earlier=found.worker, earlier_until=until)
        with suppress(ConfigError):
            made = replace(made, authority=read_secret(found.worker_file, "").authority)
        write_private_json(
            path,
            {
                "trainer": made.trainer,
                "worker": made.worker,
                **asdict(made.identity),
                "earlier": made.earlier,
                "earlier_until": made.earlier_until,
            },
        )
        made.of_worker.write(made.worker_file)
    except PrivacyError as error:
        raise ConfigError("RUN", None, f"{path} {error}") from None
    except OSError as error:
        reason = f"{error.filename or path} cannot be used: {error.strerror}"
        raise ConfigError("RUN", None, reason) from None
    return made


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
    earlier, until = said.get("earlier", ""), said.get("earlier_until", 0.0)
    if not isinstance(earlier, str) or not isinstance(until, int | float):
        raise PrivacyError("is damaged: earlier must be a token, and earlier_until a number")
    worker_file = state_dir / _WORKER_FILE
    found = RunSecrets(said["trainer"], said["worker"], identity, worker_file, earlier, until)
    if why := found.of_trainer.problem or found.of_worker.problem or identity.problem:
        raise PrivacyError(f"is damaged: {why}")
    return found
