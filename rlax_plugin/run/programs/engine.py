"""The life of every process that serves an engine: its start and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable

from rlax_plugin.base.errors import PluginError
from rlax_plugin.build import build_part
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.abilities import has
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.protocols import BuildContext, RolloutEngine
from rlax_plugin.rollout.worker.endpoint import NAME

log = logging.getLogger("rlax.worker")

Life = Callable[[RlaxSection, RolloutEngine, asyncio.Event], Awaitable[None]]


def run(config: ResolvedConfig, name: str, life: Life) -> None:
    """Builds a config's engine, and runs ``life`` on an event loop to its end.

    Args:
      name: name of this worker, in logs and metrics.
      life: its last argument is set by the first SIGTERM or Ctrl-C.

    Raises:
      RlaxError: configuration, start-up and engine failures.
    """
    os.environ[NAME] = name
    section = config.section
    context = BuildContext.outside_run(section, config)
    engine: RolloutEngine = build_part(
        "rollout_engine", section.rollouts.engine, "rlax.rollouts.engine", context
    )

    async def until_told() -> None:
        terminated = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, terminated.set)
        await life(section, engine, terminated)

    try:
        check_scores(engine, section.rollouts.engine.name)
        asyncio.run(until_told())
    finally:
        engine.close()


def check_scores(engine: RolloutEngine, name: str) -> None:
    declared = engine.capabilities
    if not isinstance(declared, Capabilities):
        kind = type(declared).__name__
        raise PluginError(f"rollout engine {name}: capabilities is {kind}, expected Capabilities")
    if declared.scores != has(engine, RolloutEngine, "score"):
        # Its canaries would not be verified, or that would fail.
        what = "a method score and Capabilities.scores, or neither"
        raise PluginError(f"rollout engine {name}: expected {what}")
    if not declared.scores:
        log.warning("%s cannot score tokens: no canary of a weight version is verified", name)
