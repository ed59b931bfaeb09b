"""Has weight versions converted while a worker reads them so."""

from __future__ import annotations

from collections.abc import Callable

from rlax_plugin.base.types import SAFETENSORS
from rlax_plugin.ports.protocols import WeightStore
from rlax_plugin.ports.training import Conversion
from rlax_plugin.rollout.fleet.fleet import Fleet, FleetListener
from rlax_plugin.rollout.fleet.worker import Worker
from rlax_plugin.weights.converting import Converter
from rlax_plugin.weights.publisher import Publisher


def converts_for(
    fleet: Fleet, make: Callable[[], Conversion], store: WeightStore, publisher: Publisher
) -> None:
    """Lets a publisher convert the versions that workers of a fleet read converted.

    Args:
      make, store: see ``Converter``.
    """

    def refuse(reason: str) -> None:
        fleet.unmakes(SAFETENSORS, f"this run cannot make it: {reason}")

    publisher.converter = converter = Converter(make, store, refuse)
    fleet.listeners.append(_Readers(fleet, publisher, converter))


def cannot_convert(directory: str, key: str) -> str:
    """Returns the reason why versions in a directory cannot be converted; empty: there is none.

    Args:
      key: what has set the directory, for the reason.
    """
    if "://" not in directory:
        return ""
    where = f"{key} puts them on an object store, {directory}"
    return f"{where}, but converted weights are written to directories only"


class _Readers(FleetListener):
    """Knows whether there are workers that read converted versions."""

    def __init__(self, fleet: Fleet, publisher: Publisher, converter: Converter):
        self._fleet, self._publisher, self._converter = fleet, publisher, converter

    def worker_heard(self, worker: Worker) -> None:
        if worker.capabilities.weights_format == SAFETENSORS and not worker.lost:
            self._converter.wanted = True
            self._publisher.convert_newest()

    def worker_lost(self, worker: Worker, reason: str) -> None:
        formats = {one.capabilities.weights_format for one in self._fleet.workers.values()}
        self._converter.wanted &= SAFETENSORS in formats
