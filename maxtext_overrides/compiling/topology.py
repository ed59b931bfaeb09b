"""Prepares a process to compile for a slice of TPUs that this machine does not have.

The process compiles nothing else: the settings hold until it ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.signatures import check
from rlax_plugin.base.errors import ConfigError, alternatives

OVERRIDES = BY_MODULE["maxtext_overrides/compiling/topology.py"]
OPTION = "--compile"

# libtpu asks the machine's metadata server for them otherwise, and waits for it. No TPU is used,
# so a process that uses one is not disturbed, and several may compile at the same time.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def prepare() -> None:
    """Sets up this process to compile for TPUs; it computes on a processor.

    Raises:
      ConfigError: the compiler, libtpu, is not installed.
    """
    if find_spec("libtpu") is None:
        reason = "needs the TPU compiler, libtpu: install it with pip install 'rlax-plugin[tpu]'"
        raise ConfigError(OPTION, None, reason)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import jax

    jax.config.update("jax_platforms", "cpu")
    # A program for a topology cannot be read back from the cache.
    jax.config.update("jax_enable_compilation_cache", False)
    from maxtext_overrides import folding

    folding.compile_for("tpu")


def keys(topology: str) -> dict[str, Any]:
    """Returns MaxText's keys of a process that compiles for a slice.

    Raises:
      ConfigError: MaxText knows no such slice.
    """
    from maxtext.utils import accelerator_to_spec_map

    known = accelerator_to_spec_map.UserFacingNameToSystemCharacteristics
    tpus = [name for name, one in known.items() if one.platform == "tpu"]
    if topology not in tpus:
        same = [name for name in tpus if name.split("-")[0] == topology.split("-")[0]]
        reason = f"is no slice of TPUs that MaxText knows; {alternatives(topology, same or tpus)}"
        raise ConfigError(OPTION, topology, reason)
    return {
        "compile_topology": topology,
        "compile_topology_num_slices": 1,
        "hardware": "tpu",
        "skip_jax_distributed_system": True,
    }


def devices(topology: str, allow_untested: bool = False) -> Sequence[Any]:
    """Returns descriptions of the devices of a slice, for which programs can be compiled.

    Raises:
      ConfigError: MaxText knows no such slice.
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, allow_untested)
    keys(topology)
    from jax.experimental.topologies import get_topology_desc
    from maxtext.utils import accelerator_to_spec_map

    found = accelerator_to_spec_map.get_system_characteristics(topology)
    return get_topology_desc(
        platform=found.platform,
        topology_name=found.topology_name,
        chip_config_name=found.chip_config_name,
        chips_per_host_bounds=found.chips_per_host_bounds,
        num_slices=1,
        wrap=found.wrap,
    ).devices
