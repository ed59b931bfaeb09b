"""Says in a sentence what limits the speed of a run."""

from __future__ import annotations

import math

from rlax_plugin.base.liveness.run_status import (
    COLOCATED,
    SILENT,
    SLOW_S,
    TIMES,
    ControllerStatus,
    RunStatus,
)
from rlax_plugin.base.text.amounts import in_seconds
from rlax_plugin.run.controller.limits import rewards_fail

_SMALL = 0.1  # share of a step that is not worth a word
_LARGE = 0.3
_BUSY = 0.8  # share of the time of reward processes
_IDLE = 0.5  # share of the slots in use, below which workers have little to do


def bottleneck(status: RunStatus) -> str:
    """Returns the sentence, from the shares of the last steps and the workers' present load."""
    found = status.controller
    if found is not None and found.reward_error:
        return rewards_fail(found.reward_error)
    if found is None or not found.shares:
        return "no step is finished yet"
    if disturbed := _disturbed(found):
        return f"unknown, as {disturbed}; rlax doctor says more"
    waits, publishes = found.shares.get("wait", 0.0), found.shares.get("publish", 0.0)
    if waits >= _SMALL:
        slow = "".join(f"; {text}" for one in found.workers if (text := one.slowness))
        why = _why_waiting(found, waits)
        return f"the trainer waits {waits:.0%} of the step for samples{slow}{why}"
    if publishes >= _LARGE:
        return (
            f"publishing weights holds the trainer up for {publishes:.0%} of the step: a faster "
            "disk, or rlax.weights.path on one, would help"
        )
    return (
        f"the trainer is busy for {1 - waits:.0%} of the step and is the bottleneck: more workers "
        "would not help"
    )


def _disturbed(found: ControllerStatus) -> str:
    """Returns why the last steps say nothing about the present one; empty: nothing has happened."""
    if silent := [one.name for one in found.workers if one.state == SILENT]:
        return f"worker {silent[0]} is silent"
    ended_at, step_s = found.step_at or 0.0, found.step_s or 0.0
    since_s = found.seen - ended_at if found.step_at and step_s else 0.0
    if since_s > max(2 * SLOW_S, TIMES * step_s):
        usual = in_seconds(step_s)
        return f"no step has ended for {in_seconds(since_s)}, and one usually takes {usual}"
    if lost := [one.name for one in found.losses if one.at > ended_at]:
        return f"worker {lost[-1]} was lost, and no step has ended since"
    return ""


def _why_waiting(found: ControllerStatus, waits: float) -> str:
    ready = [one for one in found.workers if one.version >= 0 and one.state != "drains"]
    if not ready:
        return ": no worker has weights"
    used = 1.0 if found.slots_used is None else found.slots_used
    if used < _IDLE and (found.rewards_used or 0.0) > _BUSY:
        return (
            f"; {used:.0%} of the workers' slots are in use, and the {found.reward_processes} "
            f"reward processes are busy for {found.rewards_used:.0%} of the time: raise "
            "rlax.reward_processes"
        )
    if all(one.name.partition("-")[0] == COLOCATED for one in ready):
        return (
            ", because training and generation take turns on the same devices; a worker with "
            "devices of its own would share the generation"
        )
    if found.max_staleness == 1:
        return (
            ", because rlax.staleness.max_staleness is 1: each step is generated with the newest "
            "weights. With 2, the next batch is generated while this one trains; twice the workers "
            "save at most half of the wait"
        )
    if used < _IDLE:
        return (
            f", although only {used:.0%} of the workers' slots are in use: a larger "
            "rlax.staleness.max_staleness lets more groups be generated ahead"
        )
    # Without the wait, samples must come 1 / (1 - waits) times as fast.
    more = math.ceil(len(ready) / max(1 - waits, 0.05)) - len(ready)
    return f": {more} more {'worker' if more == 1 else 'workers'} would balance"
