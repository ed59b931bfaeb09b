"""The time that pods get to end after SIGTERM, from the deadlines of the config."""

from __future__ import annotations

import math

from rlax_plugin.config import RlaxSection

SPOT_S = 15
"""Time that GKE gives ordinary pods of a spot node that is taken away, at best."""

_REST_S = 10.0  # for signals, threads and sockets, on a busy node
_ENDING_S = 60.0  # of the trainer's parts that have no deadline of their own


def worker_grace_s(section: RlaxSection) -> int:
    """Returns seconds for a worker to finish or hand over its groups, and to leave the run."""
    deadlines, rollouts = section.deadlines, section.rollouts
    drain_s = deadlines.drain_s
    if rollouts.on_new_weights == "continue":  # first it hands unfinished samples over
        drain_s += min(drain_s, 2 * rollouts.progress_s)
    return math.ceil(drain_s + 2 * deadlines.rpc_s + _REST_S)


def trainer_grace_s(section: RlaxSection) -> int:
    """Returns seconds for the trainer to end its step, write a checkpoint and close its parts.

    It covers the wait for a batch, writing one weight version and the last records, and closing
    trackers and deletions. The duration of a train step is not known here.
    """
    deadlines = section.deadlines
    work_s = deadlines.batch_s + 2 * deadlines.weights_s + 2 * deadlines.close_s
    return math.ceil(work_s + _ENDING_S + _REST_S)
