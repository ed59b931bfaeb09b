"""Options of the rollout engine ``jetstream``."""

from __future__ import annotations

from rlax_plugin.api import SlotsConfig

SERVICE = "jetstream_proto.Orchestrator"
"""The gRPC service that other programs call."""


class JetstreamConfig(SlotsConfig):
    """Generates with MaxText's MaxEngine and continuous batching, and serves JetStream's API."""
