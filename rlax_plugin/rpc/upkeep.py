"""Keeps the secrets of a running server up to date: rotated tokens, and certificates that end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from rlax_plugin.rpc.callers import Callers
from rlax_plugin.rpc.certificate import Identity
from rlax_plugin.rpc.operator_certificate import OperatorIdentity
from rlax_plugin.rpc.private_files import signature
from rlax_plugin.rpc.run_secrets import RunSecrets, known_secrets, secrets_file

log = logging.getLogger("rlax.rpc")

_DAY_S = 86_400.0


class Upkeep:
    """Looks at a run's secrets again and again, on the event loop of its server.

    Args:
      state_dir: directory of the secrets.
      secrets: as they were when the server started.
      callers: of the server; admits new worker tokens, and dismisses old ones at their time.
      identity: of the server; warned about if its certificate ends.
      note: shows one line to the user.
      on_rotated: called with the secrets after a rotation.
      clock: Unix time in seconds.
    """

    def __init__(
        self,
        state_dir: Path,
        secrets: RunSecrets,
        callers: Callers,
        identity: Identity | OperatorIdentity,
        *,
        note: Callable[[str], None],
        on_rotated: Callable[[RunSecrets], None] = lambda secrets: None,
        clock: Callable[[], float] = time.time,
    ):
        self._state_dir, self._secrets, self._callers = state_dir, secrets, callers
        self._identity, self._note, self._on_rotated = identity, note, on_rotated
        self._clock, self._warn_next = clock, 0.0
        self._signature: object = None
        # Old tokens that are still accepted -> when that ends.
        self._ending = {secrets.earlier: secrets.earlier_until} if secrets.earlier else {}

    async def run(self, every_s: float) -> None:
        """Looks at everything every so many seconds, until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(every_s)

    def look(self) -> None:
        """Looks at everything once."""
        found = signature(secrets_file(self._state_dir))
        if found not in (None, self._signature):
            self._signature = found
            self._reread()
        now = self._clock()
        for token in [token for token, until in self._ending.items() if until <= now]:
            del self._ending[token]
            self._callers.dismiss(token)
            log.info("the worker token before the last rotation is not accepted any more")
        if now >= self._warn_next and isinstance(self._identity, OperatorIdentity):
            self._warn_next = now + _DAY_S
            if line := self._identity.warning():
                log.warning("%s", line)
                self._note(line)

    def _reread(self) -> None:
        found = known_secrets(self._state_dir, self._secrets.authority)
        if found is None or found.identity != self._secrets.identity:
            log.warning("the run's secrets were replaced: they are used after a restart")
            return
        if found.worker == self._secrets.worker:
            return
        self._callers.admit(found.worker, "worker")
        until = found.earlier_until
        self._ending = {token: min(ends, until) for token, ends in self._ending.items()}
        self._ending[self._secrets.worker] = until
        if found.earlier:
            self._callers.admit(found.earlier, "worker")
            self._ending[found.earlier] = until
        self._ending.pop(found.worker, None)
        self._secrets = found
        left_s = max(0.0, until - self._clock())
        self._note(f"the worker token was rotated; the one before is accepted for {left_s:.0f} s")
        self._on_rotated(found)
