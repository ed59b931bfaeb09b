"""The secrets of a run, in its state directory: made once, kept for the processes that resume it.

Workers outlive a trainer process and recognise its successor by them. The controller and a separate
parameter server of the same run share them. Each role other than the trainer has a token file of
its own, which is handed to those who have the role.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.rpc.security.callers import Callers
from rlax_plugin.rpc.security.certificate import Identity, new_identity
from rlax_plugin.rpc.security.operator_certificate import OperatorIdentity
from rlax_plugin.rpc.security.private_files import (
    PrivacyError,
    read_private_json,
    signature,
    write_private_json,
)
from rlax_plugin.rpc.security.secret import Secret, new_token, read_secret

log = logging.getLogger("rlax.controller")

_FILE = "secrets.json"
_TOKENS = ("trainer", "worker", "host", "client")
_DAY_S = 86_400.0

FileRole = Literal["worker", "host", "client"]


def token_file(state_dir: Path, role: FileRole) -> Path:
    """The file to hand to others of a role: their token, and the certificate of the controller."""
    return state_dir / f"{role}-token.json"


@dataclass(frozen=True, slots=True)
class RunSecrets:
    """The secrets of one run.

    Attributes:
      trainer: the token of the trainer's own process; no worker ever learns it.
      worker: the token with which a process may join the run as a worker.
      host: the token with which the other hosts of a trainer join host 0.
      client: the token with which the user's commands ask for the status of the run.
      identity: key and certificate of the controller and the parameter server.
      state_dir: directory of all files.
      earlier: the worker token before the last rotation; "" if it is not accepted any more.
      earlier_until: Unix time in seconds until which it is accepted.
      authority: PEM, by which clients verify the operator's certificates; "": there are none, and
        clients compare the certificate of ``identity``.
    """

    trainer: str = field(repr=False)
    worker: str = field(repr=False)
    host: str = field(repr=False)
    client: str = field(repr=False)
    identity: Identity
    state_dir: Path
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

    @property
    def worker_file(self) -> Path:
        """The file to hand to workers: their token, and the certificate."""
        return token_file(self.state_dir, "worker")

    def share(self, role: Literal["host", "client"]) -> str:
        """Writes the token file of a role, and returns its token.

        Raises:
          ConfigError: the file cannot be written.
        """
        token = self.host if role == "host" else self.client
        path = token_file(self.state_dir, role)
        try:
            replace(self.of_worker, token=token).write(path)
        except OSError as error:
            reason = f"{path} cannot be written: {error.strerror}"
            raise ConfigError("rlax.state_dir", str(self.state_dir), reason) from None
        return token

    def callers(self) -> Callers:
        """The permitted callers of the run's own endpoints, without hosts and clients."""
        callers = Callers()
        callers.admit(self.trainer, "trainer")
        callers.admit(self.worker, "worker")
        if self.earlier and self.earlier_until > time.time():
            callers.admit(self.earlier, "worker")
        return callers

    def document(self) -> dict[str, object]:
        """The content of ``secrets.json``."""
        tokens = {name: getattr(self, name) for name in _TOKENS}
        earlier = {"earlier": self.earlier, "earlier_until": self.earlier_until}
        return {**tokens, **asdict(self.identity), **earlier}


def run_secrets(state_dir: Path, authority: str = "") -> RunSecrets:
    """The secrets of a run, which are made if there are none.

    Secrets that others may have read are replaced, and workers that hold them have to join again.

    Args:
      authority: see ``RunSecrets``; it becomes part of the token files.

    Raises:
      ConfigError: the files cannot be read or written.
    """
    path = state_dir / _FILE
    try:
        try:
            found = _read(state_dir)
        except PrivacyError as error:
            log.warning("%s %s: the run gets new secrets", path, error)
            write_private_json(path, _new(state_dir).document())
            found = _read(state_dir)
        if found is None:
            with suppress(FileExistsError):  # a parameter server, or the trainer, was quicker
                write_private_json(path, _new(state_dir).document(), replace=False)
            found = _read(state_dir)
        if found is None:
            raise ConfigError("rlax.state_dir", str(state_dir), f"{path} was removed just now")
        roles = ("host", "client")
        if leaked := [role for role in roles if _is_known(token_file(state_dir, role))]:
            log.warning("token files that others may have read: %s get new tokens", leaked)
            found = replace(found, **{role: new_token() for role in leaked})
            write_private_json(path, found.document())
        found = replace(found, authority=authority)
        found.of_worker.write(found.worker_file)
    except PrivacyError as error:
        reason = f"{path} {error}: the file system must keep owners and modes of files"
        raise ConfigError("rlax.state_dir", str(state_dir), reason) from None
    except OSError as error:
        reason = f"{error.filename or path} cannot be used: {error.strerror}"
        raise ConfigError("rlax.state_dir", str(state_dir), reason) from None
    return found


def _is_known(path: Path) -> bool:
    """True if other users may have read a token file."""
    try:
        read_private_json(path)
    except PrivacyError:
        return True
    except OSError:
        return False
    return False


def known_secrets(state_dir: Path, authority: str = "") -> RunSecrets | None:
    """Returns the secrets of a run; None if it has none so far, or they cannot be read."""
    try:
        found = _read(state_dir)
    except (PrivacyError, OSError):
        return None
    return None if found is None else replace(found, authority=authority)


def rotate(state_dir: Path, old_s: float) -> RunSecrets:
    """Gives a run a new worker token, in its secrets and in the workers' file.

    Args:
      old_s: seconds for which the token before is still accepted.

    Raises:
      ConfigError: the run has no usable secrets, or a file cannot be written.
    """
    path = state_dir / _FILE
    try:
        found = _read(state_dir)
        if found is None:
            raise ConfigError("RUN", None, f"has no secrets yet ({path}): start it first")
        until = time.time() + old_s
        made = replace(found, worker=new_token(), earlier=found.worker, earlier_until=until)
        with suppress(ConfigError):
            made = replace(made, authority=read_secret(found.worker_file, "").authority)
        write_private_json(path, made.document())
        made.of_worker.write(made.worker_file)
    except PrivacyError as error:
        raise ConfigError("RUN", None, f"{path} {error}") from None
    except OSError as error:
        reason = f"{error.filename or path} cannot be used: {error.strerror}"
        raise ConfigError("RUN", None, reason) from None
    return made


def _new(state_dir: Path) -> RunSecrets:
    trainer, worker, host, client = (new_token() for _ in _TOKENS)
    return RunSecrets(trainer, worker, host, client, new_identity(), state_dir)


def _read(state_dir: Path) -> RunSecrets | None:
    try:
        said = read_private_json(state_dir / _FILE)
    except FileNotFoundError:
        return None
    names = (*_TOKENS, "key", "certificate")
    if not isinstance(said, Mapping) or not all(isinstance(said.get(n), str) for n in names):
        raise PrivacyError("is damaged: it must hold " + ", ".join(names))
    identity = Identity(said["key"], said["certificate"])
    earlier, until = said.get("earlier", ""), said.get("earlier_until", 0.0)
    if not isinstance(earlier, str) or not isinstance(until, int | float):
        raise PrivacyError("is damaged: earlier must be a token, and earlier_until a number")
    tokens = trainer, worker, host, client = [said[name] for name in _TOKENS]
    for token in tokens:
        if why := Secret(token, identity.certificate).problem or identity.problem:
            raise PrivacyError(f"is damaged: {why}")
    return RunSecrets(trainer, worker, host, client, identity, state_dir, earlier, until)


class Upkeep:
    """Looks at a run's secrets again and again, on the event loop of its server.

    Args:
      secrets: as they were when the server started.
      callers: of the server; admits new worker tokens, and dismisses old ones at their time.
      identity: of the server; warned about if its certificate ends.
      note: shows one line to the user.
      on_rotated: called with the secrets after a rotation.
      clock: Unix time in seconds.
    """

    def __init__(
        self,
        secrets: RunSecrets,
        callers: Callers,
        identity: Identity | OperatorIdentity,
        *,
        note: Callable[[str], None],
        on_rotated: Callable[[RunSecrets], None] = lambda secrets: None,
        clock: Callable[[], float] = time.time,
    ):
        self._secrets, self._callers = secrets, callers
        self._identity, self._note, self._on_rotated = identity, note, on_rotated
        self._clock, self._warn_next = clock, 0.0
        self._signature: object = None

    async def run(self, every_s: float) -> None:
        """Looks at everything every so many seconds, until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(every_s)

    def look(self) -> None:
        """Looks at everything once."""
        found = signature(self._secrets.state_dir / _FILE)
        if found not in (None, self._signature):
            self._signature = found
            self._reread()
        now, secrets = self._clock(), self._secrets
        if secrets.earlier and secrets.earlier_until <= now:
            self._callers.dismiss(secrets.earlier)
            self._secrets = replace(secrets, earlier="")
            log.info("the worker token before the last rotation is not accepted any more")
        if now >= self._warn_next and isinstance(self._identity, OperatorIdentity):
            self._warn_next = now + _DAY_S
            if line := self._identity.warning():
                log.warning("%s", line)
                self._note(line)

    def _reread(self) -> None:
        before = self._secrets
        found = known_secrets(before.state_dir, before.authority)
        if found is None or found.identity != before.identity:
            log.warning("the run's secrets were replaced: they are used after a restart")
            return
        if found.worker == before.worker:
            return
        for token in {before.worker, before.earlier} - {found.worker, found.earlier}:
            self._callers.dismiss(token)
        for token in filter(None, (found.worker, found.earlier)):
            self._callers.admit(token, "worker")
        self._secrets = found
        left_s = max(0.0, found.earlier_until - self._clock())
        self._note(f"the worker token was rotated; the one before is accepted for {left_s:.0f} s")
        self._on_rotated(found)
