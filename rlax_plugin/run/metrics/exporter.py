"""Metrics of a run, exported to Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from rlax_plugin.config import Network
from rlax_plugin.config.network import PROMETHEUS_TOKEN
from rlax_plugin.ports.protocols import Tracker
from rlax_plugin.rpc.security.token_file import read_token
from rlax_plugin.rpc.transport.prometheus import (
    Exporter,
    Family,
    Figures,
    family_of,
    worker_families,
)


def prometheus_token(network: Network) -> str:
    """Returns the token that scrapes of the trainer must have; "" if its page is open.

    Raises:
      ConfigError: the token file cannot be used.
    """
    path = network.prometheus_token_file
    return read_token(PROMETHEUS_TOKEN, path) if path else ""


class PrometheusTracker(Tracker):
    """Exports each step's metrics, and the state of the fleet at the time of a scrape.

    Args:
      counts, workers: called at each scrape, on the exporter's thread; see ``RunMetrics``.
      network: network settings, with ``prometheus_port`` set.

    Attributes:
      url: address of the page.

    Raises:
      ConfigError: the port is taken, or the token file cannot be used.
    """

    def __init__(
        self,
        counts: Callable[[], Figures],
        workers: Callable[[], Mapping[str, Figures]],
        network: Network,
    ):
        assert network.prometheus_port is not None, "nothing is to be exported"
        self._metrics = RunMetrics(counts=counts, workers=workers)
        self._exporter = Exporter(
            network.place,
            network.prometheus_port,
            "rlax.network.prometheus_port",
            self._metrics.registry,
            token=prometheus_token(network),
        )
        self.url = self._exporter.url

    def log(self, step: int, metrics: Figures) -> None:
        self._metrics.step(step, metrics)

    def close(self) -> None:
        self._exporter.close()


class RunMetrics(Collector):
    """The trainer's exported metrics: those of its newest step, its fleet, and error counts.

    Args:
      counts: returns name -> figure of the run; names that end in ``_total`` are counters.
      workers: returns worker name -> figures. Both are called on the exporter's thread.

    Attributes:
      registry: the registry, for an ``Exporter``.
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

        Metrics of an evaluation stay until the next one, as few scrapes would see a single step.
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
