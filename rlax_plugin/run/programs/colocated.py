"""The worker of a run in the trainer's own process, from its start to the run's end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.build import build_part
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.protocols import BuildContext, RolloutEngine
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.worker.colocated import ColocatedLink, OwnProcess
from rlax_plugin.rollout.worker.joining import RunToJoin
from rlax_plugin.rollout.worker.member import PROCESS, Member
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.run.programs.engine import check_scores
from rlax_plugin.weights.memory_copies import THIS_PROCESS

log = logging.getLogger("rlax.worker")

NAME = "colocated"

_CLOSE_S = 15.0  # for the engine's thread to leave a call


async def colocated_worker(
    run: RunToJoin, config: ResolvedConfig, devices: Devices, fleet: Fleet
) -> None:
    """Generates until the run is over, in turns with training.

    The engine is built once the trainer waits: two threads must not import MaxText at once.

    Raises:
      RlaxError: the engine cannot be built or has failed, or its weights are wrong. The run must
        end, as it cannot have another one in this process.
    """
    await asyncio.wrap_future(devices.rested)
    section = run.section
    context = BuildContext.outside_run(section, config)
    context = dataclasses.replace(context, generating=devices.generating)
    choice, key = section.rollouts.engine, "rlax.rollouts.engine"
    engine: RolloutEngine = await asyncio.to_thread(
        build_part, "rollout_engine", choice, key, context
    )
    try:
        check_scores(engine, choice.name)
        member = Member(
            name=NAME,
            run=run,
            endpoint=OwnProcess(run.controller, run.secret.certificate),
            engine=engine,
            on_quarantine=lambda: service.stop_generating("this worker is quarantined"),
            progress=lambda health, loading: service.progress(health, loading, devices.training),
            memory=THIS_PROCESS,
        )
        service = RolloutService(
            engine, section, on_wanted=member.want, has_weights=lambda: member.holds_weights
        )
        fleet.here[PROCESS] = lambda: ColocatedLink(service, engine, section)
        try:
            await member.live()
        finally:
            del fleet.here[PROCESS]
            await member.leave()
            service.stop_generating("the run is over")
            service.end_calls()
    finally:
        devices.rest()  # else the engine's thread might wait for its turn
        await asyncio.wait_for(asyncio.to_thread(engine.close), _CLOSE_S)
