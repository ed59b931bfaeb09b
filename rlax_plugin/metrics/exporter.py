"""What of a run Prometheus is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from rlax_plugin.config import Network
from rlax_plugin.metrics.prometheus import Exporter, Family, Figures, family_of, worker_families
from rlax_plugin.ports.protocols import Tracker
from rlax_plugin.rpc.token_file import read_token

if TYPE_CHECKING:
    from rlax_plugin.controller.controller import Controller


def prometheus_token(network: Network) -> str:
    """The token that scrapes of the trainer must have; "" if its page is open.

    Raises:
      ConfigError: the file cannot be used.
    """
    path = network.prometheus_token_file
    return read_token("rlax.network.prometheus_token_file", path) if path else ""


class PrometheusTracker(Tracker):
    """Exports each step's metrics, and the fleet as it stands at a scrape.

    Args:
      controller: read on the exporter's thread; started already.
      network: its ``prometheus_port`` is not None.

    Raises:
      ConfigError: the port is taken, or the token file cannot be used.
    """

    def __init__(self, controller: Controller, network: Network):
        def counts() -> Figures:
            return {
                "weight_version": controller.fleet.newest.number,
                "weight_versions_published_total": controller.stats.versions_published,
                "groups_reissued_total": controller.run_state.totals.reissued,
                "workers_seen_total": len(controller.fleet.identities.names),
                "workers_quarantined_total": len(controller.fleet.identities.quarantined),
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
            token=prometheus_token(network),
        )
        controller.dashboard.message(f"metrics for Prometheus: {self._exporter.url}")

    def log(self, step: int, metrics: Figures) -> None:
        self._metrics.step(step, metrics)

    def close(self) -> None:
        self._exporter.close()


class RunMetrics(Collector):
    """What the trainer exports: its newest step's metrics, its fleet, and what went wrong.

    Args:
      counts: name -> figure of the run; those that end in ``_total`` are counters.
      workers: name -> figures. Both are called on the exporter's thread.

    Attributes:
      registry: for an ``Exporter``.
    """

    def __init__(
        self, *, counts: Callable[[], Figures], workers: Callable[[], Mapping[str, Figures]]
    ):
        self._counts, self._workers = counts, workers
        self._newest: tuple[int, dict[str, float]] = (0, {})
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def step(self, step: int, metrics: Figures) -> None:
        """Takes a finished step's metrics, named ``stage/name``, or more of the newest step's.

        Those of an evaluation stay until the next one: few scrapes would see a single step's.
        """
        newest, before = self._newest
        kept = {k: v for k, v in before.items() if step == newest or k.startswith("evaluation")}
        self._newest = (step, kept | dict(metrics))

    def collect(self) -> Iterable[Family]:
        step, metrics = self._newest
        documented = {name: f"{name} of the newest RL step" for name in metrics}
        documented |= {"step": "the newest finished RL step"}
        for name, value in {**metrics, "step": step, **self._counts()}.items():
            family = family_of(name, documented.get(name, name.replace("_", " ")))
            family.add_metric([], value)
            yield family
        yield from worker_families(self._workers())
