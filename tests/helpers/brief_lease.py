"""Plug-in, and part of a test: leases of runs are renewed, and taken over, within seconds."""

from rlax_plugin.api import Extension, hookimpl
from rlax_plugin.run.start import lease

lease.EVERY_S, lease.STALE_S = 0.2, 5.0


@hookimpl
def rlax_register_filter() -> dict[str, Extension]:
    return {}
