"""The slots' engine, which also answers JetStream's clients."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rlax_jetstream.options import SERVICE
from rlax_plugin.api import SlotsEngine


class JetstreamEngine(SlotsEngine):
    """Rollout engine over slots, with JetStream's own gRPC service."""

    services = (SERVICE,)

    def add_services(self, server: Any) -> Future[None]:
        """Adds JetStream's own service; done once it answers."""
        from rlax_jetstream.servicer import add_jetstream_service

        return add_jetstream_service(server, self)

    def client_example(self, address: str, token_file: Path | None) -> str:
        """A shell command that requests a completion, with JetStream's own client."""
        from rlax_jetstream.servicer import client_example

        prompts, most = self.prompt_source(), self.rollouts.max_new_tokens
        return client_example(address, token_file, prompts, most)
