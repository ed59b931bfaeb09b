"""Figures for Prometheus: a page ``/metrics`` on a port of its own, computed when it is scraped.

Every exporter has a registry of its own, so that several can live in one process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.http import WsgiServer

_PREFIX = "rlax_"

Family = CounterMetricFamily | GaugeMetricFamily
Figures = Mapping[str, float]


def metric_name(name: str) -> str:
    """``stage/name`` as Prometheus wants names: ``rlax_stage_name``."""
    return _PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def family_of(name: str, documentation: str, labels: Sequence[str] = ()) -> Family:
    """An empty family; a name that ends in ``_total`` makes it a counter."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(metric_name(name), documentation, labels=labels)


class Exporter:
    """Serves ``/metrics`` on a thread of its own until it is closed.

    Args:
      host: address to bind.
      port: 0 takes any free one.
      key: what sets the port, for the error's message.
      registry: what is served; its collectors are called on the serving thread.
      token: that a scrape must have as ``Authorization: Bearer TOKEN``; "": the page is open.

    Attributes:
      url: what Prometheus is to scrape.

    Raises:
      ConfigError: the port is taken.
    """

    def __init__(
        self, host: str, port: int, key: str, registry: CollectorRegistry, *, token: str = ""
    ):
        try:
            self._server = WsgiServer(host, port, make_wsgi_app(registry), token=token)
        except OSError as error:
            reason = f"cannot be used on {host}: {error.strerror}; 0 means any free port"
            raise ConfigError(key, port, reason) from error
        self.url = f"http://{host}:{self._server.port}/metrics"

    def close(self) -> None:
        """Ends the thread and frees the port."""
        self._server.close()


def worker_families(workers: Mapping[str, Figures]) -> Iterable[Family]:
    """``rlax_worker_<figure>{worker=NAME}``; figures that end in ``_total`` are counters."""
    families: dict[str, Family] = {}
    for worker, figures in workers.items():
        for name, value in figures.items():
            if name not in families:
                families[name] = family_of(f"worker/{name}", f"{name} of a worker", ["worker"])
            families[name].add_metric([worker], value)
    return families.values()
