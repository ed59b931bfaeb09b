"""What of a run Prometheus is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlax_plugin.config import Network
from rlax_plugin.metrics.prometheus import Exporter, Figures, RunMetrics
from rlax_plugin.ports.protocols import Tracker

if TYPE_CHECKING:
    from rlax_plugin.controller.controller import Controller


class PrometheusTracker(Tracker):
    """Exports each step's metrics, and the fleet as it stands at a scrape.

    Args:
      controller: read on the exporter's thread; started already.
      network: its ``prometheus_port`` is not None.

    Raises:
      ConfigError: the port is taken.
    """

    def __init__(self, controller: Controller, network: Network):
        def counts() -> Figures:
            return {
                "weight_version": controller.fleet.latest_version,
                "weight_versions_published_total": controller.stats.versions_published,
                "groups_reissued_total": controller.run_state.totals.reissued,
                "workers_seen_total": len(controller.fleet.seen),
                "workers_quarantined_total": len(controller.fleet.quarantined),
            }

        def workers() -> Mapping[str, Figures]:
            return {
                worker.name: {
                    **worker.figures,
                    "weight_version": worker.version,
                    "draining": worker.draining,
                    "assigned": worker.assigned,
                }
                for worker in list(controller.fleet.workers.values())
            }

        assert network.prometheus_port is not None, "nothing is to be exported"
        self._metrics = RunMetrics(counts=counts, workers=workers)
        self._exporter = Exporter(
            network.host,
            network.prometheus_port,
            "rlax.network.prometheus_port",
            self._metrics.registry,
        )
        controller.dashboard.message(f"metrics for Prometheus: {self._exporter.url}")

    def log(self, step: int, metrics: Figures) -> None:
        self._metrics.step(step, metrics)

    def close(self) -> None:
        self._exporter.close()
