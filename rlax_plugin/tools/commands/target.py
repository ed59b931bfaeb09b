"""The weights that a command takes from a run: a weight version or a checkpoint."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from contextlib import AsyncExitStack

from rlax_plugin.base.errors import ConfigError, DeadlineError, WeightsError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.config import RlaxSection
from rlax_plugin.rpc.security.operator_certificate import authority_of
from rlax_plugin.rpc.security.run_secrets import known_secrets
from rlax_plugin.run.start.run_directory import state_directory
from rlax_plugin.run.state.endpoints import endpoints
from rlax_plugin.weights.client import ParameterServerClient
from rlax_plugin.weights.kept_versions import kept_version
from rlax_plugin.weights.named import Target


def checkpoint_name(target: Target, known: Mapping[int, str]) -> str:
    """Returns the checkpoint's name below ``checkpoints/``.

    Args:
      known: step -> name of the run's checkpoints.

    Raises:
      ConfigError: there is no checkpoint of that step or name.
    """
    step, wanted = target.step, target.checkpoint
    found = known.get(step, "") if step is not None else wanted
    if found not in known.values():
        key, value = ("--step", step) if step is not None else ("RUN", target.typed)
        there = ", ".join(f"{step} ({name})" for step, name in sorted(known.items())) or "none"
        reason = f"{target.run.url} has no such checkpoint; of these steps it has some: {there}"
        raise ConfigError(key, value, reason)
    return found


async def find_version(
    target: Target, section: RlaxSection, closing: AsyncExitStack
) -> tuple[WeightVersion, bool]:
    """Returns the weight version, under a lease if the run is active; ``closing`` releases it.

    Args:
      section: section of the run's config.

    Returns:
      The version, and True if the run is active.

    Raises:
      ConfigError: the run has no such version.
      WeightsError: the run's record of versions is damaged, or the version's bytes are gone.
    """
    address = section.weights.parameter_server
    if address == "embedded":
        known = endpoints(state_directory(section, target.run))
        address = known.parameter_server if known is not None else ""
    secrets = known_secrets(
        state_directory(section, target.run), authority_of(section.network.tls) if address else ""
    )
    if address and secrets is not None:
        client = ParameterServerClient(address, secrets.of_trainer, section.deadlines.rpc_s)
        closing.push_async_callback(client.close)
        if await _serves(client, target.run, section):
            return await closing.enter_async_context(client.acquire(target.version)), True
    return kept_version(target.run, target.version), False


async def _serves(client: ParameterServerClient, run: RunFiles, section: RlaxSection) -> bool:
    """True if a parameter server answers, and has versions of this run."""
    try:
        latest = await client.latest()
    except (WeightsError, DeadlineError):
        return False  # the run was killed, so that its endpoints are still on record
    if latest is None:
        return False
    weights = RunFiles(section.weights.path or run.location("weights"))
    here, there = weights.location(), posixpath.dirname(latest.paths[0])
    if weights.is_local:
        here, there = os.path.realpath(here), os.path.realpath(there)
    return here == there
