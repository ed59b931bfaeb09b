"""The ``/metrics`` page for Prometheus, on its own port, computed when it is scraped.

Every exporter has its own registry, so several can exist in one process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.addresses import bracketed, is_loopback
from rlax_plugin.config.network import Place

_PREFIX = "rlax_"

Family = CounterMetricFamily | GaugeMetricFamily
Figures = Mapping[str, float]


def metric_name(name: str) -> str:
    """Converts ``stage/name`` to a Prometheus name: ``rlax_stage_name``."""
    return _PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def family_of(name: str, documentation: str, labels: Sequence[str] = ()) -> Family:
    """Returns an empty family: a counter if the name ends in ``_total``, otherwise a gauge."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(metric_name(name), documentation, labels=labels)


class Exporter:
    """Serves ``/metrics`` on its own thread until it is closed.

    Args:
      place: its host is bound, and its advertised one is in ``url``.
      port: port to bind; 0 takes any free one.
      key: config key that sets the port, for the error's message.
      registry: metrics to serve; its collectors are called on the serving thread.
      token: token that a scrape must send as ``Authorization: Bearer TOKEN``; "": the page is open.

    Attributes:
      url: address for Prometheus to scrape.

    Raises:
      ConfigError: the port is taken, or other machines could read the page without a token.
    """

    def __init__(
        self, place: Place, port: int, key: str, registry: CollectorRegistry, *, token: str = ""
    ):
        host = place.host
        if not token and not is_loopback(host):
            reason = f"cannot be used on {host} without a token: other machines could read the page"
            raise ConfigError(key, port, reason)
        from rlax_plugin.rpc.transport.http import HttpServer, read_only  # takes 0.2 s

        try:
            self._server = HttpServer(read_only(make_asgi_app(registry), token), host, port)
        except OSError as error:
            reason = f"cannot be used on {host}: {error.strerror}; 0 means any free port"
            raise ConfigError(key, port, reason) from error
        self.url = f"http://{bracketed(place.reached_at)}:{self._server.port}/metrics"

    def close(self) -> None:
        """Ends the thread and frees the port."""
        self._server.close()


def worker_families(workers: Mapping[str, Figures]) -> Iterable[Family]:
    """Yields ``rlax_worker_<figure>{worker=NAME}``; figures named ``*_total`` are counters."""
    families: dict[str, Family] = {}
    for worker, figures in workers.items():
        for name, value in figures.items():
            if name not in families:
                families[name] = family_of(f"worker/{name}", f"{name} of a worker", ["worker"])
            families[name].add_metric([worker], value)
    return families.values()
