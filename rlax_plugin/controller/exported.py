"""The figures of a run that are exported to Prometheus besides the metrics of its steps."""

from __future__ import annotations

from collections.abc import Mapping

from rlax_plugin.controller.controller import Controller
from rlax_plugin.metrics.prometheus import Figures


class ExportedFigures:
    """The figures of a run and its fleet at a scrape; read on the exporter's thread.

    Args:
      controller: started already.
    """

    def __init__(self, controller: Controller):
        self._controller = controller

    def counts(self) -> Figures:
        """Returns name -> figure of the run."""
        run, fleet = self._controller, self._controller.fleet
        return {
            "weight_version": fleet.newest.number,
            "weight_versions_published_total": run.stats.versions_published,
            "groups_reissued_total": run.run_state.totals.reissued,
            "workers_seen_total": len(fleet.identities.names),
            "workers_quarantined_total": len(fleet.identities.quarantined),
        }

    def workers(self) -> Mapping[str, Figures]:
        """Returns name -> figures of each worker."""
        return {
            worker.name: {
                **worker.figures,
                "weight_version": worker.version,
                "draining": worker.draining,
                "assigned": worker.assigned,
            }
            for worker in list(self._controller.fleet.workers.values())
        }
