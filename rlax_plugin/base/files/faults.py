"""Fault points: places, most of them between disk writes, at which a test of recovery may kill.

``RLAX_KILL_AT=<name>:<n>`` makes the process kill itself, as a preemption would, when it reaches
this point for the n-th time. ``RLAX_FAULT_LOG=<path>`` makes it append the name of each point that
it reaches to a file, for ``make chaos``, which then kills another process.
"""

from __future__ import annotations

import enum
import os
import signal
from collections import Counter

VARIABLE, LOG = "RLAX_KILL_AT", "RLAX_FAULT_LOG"


class FaultPoint(enum.StrEnum):
    """The fault points, in the order in which one step reaches them."""

    CONFIG_WRITTEN = "config-written"  # the run's directory exists, and no more
    METRICS_CUT = "metrics-cut"  # metrics.jsonl ends where the checkpoint does
    RECOVERED = "recovered"  # leftovers are removed, the ledger says what the journal says
    EVALUATION_BEGUN = "evaluation-begun"  # its first problems are about to be generated
    TURN_SAMPLED = "turn-sampled"  # of an episode that goes on; it is not recorded yet
    PILOTS_SCORED = "pilots-scored"  # the first samples of a group are; others are to be generated
    LEDGER_WRITTEN = "ledger-written"  # events are in the local ledger, not in the run directory
    COMMIT_BEGUN = "commit-begun"  # the batch is chosen, nothing of it is written
    SAMPLES_WRITTEN = "samples-written"  # its samples are, the journal does not say so yet
    SEGMENT_WRITTEN = "segment-written"  # the journal says so, the ledger does not
    COMMIT_ENDED = "commit-ended"  # the ledger does as well; the batch is not trained yet
    # The update is done and nowhere but in memory; rlax_plugin.testing only.
    STEP_TRAINED = "step-trained"
    SIGNALS_WRITTEN = "signals-written"  # their state of a step, before its snapshot
    SNAPSHOT_BEGUN = "snapshot-begun"  # the journal is complete, the snapshot not written
    SNAPSHOT_WRITTEN = "snapshot-written"  # the checkpoint it belongs to does not exist yet
    CHECKPOINT_WRITTEN = "checkpoint-written"  # the step is committed; rlax_plugin.testing only
    WEIGHTS_LISTED = "weights-listed"  # the path of a version is, nothing is written there yet
    OWN_CHUNKS_WRITTEN = "own-chunks-written"  # host 0's; those of other hosts perhaps not
    FOLLOWER_CHUNKS_WRITTEN = "follower-chunks-written"  # another host's, which did not say so yet
    WEIGHTS_WRITTEN = "weights-written"  # a version's bytes are, nobody knows of them
    WEIGHTS_PUBLISHED = "weights-published"  # workers may pull it
    WEIGHTS_RETIRED = "weights-retired"  # off the list of those to read, not yet deleted
    METRICS_WRITTEN = "metrics-written"  # the step's line is in metrics.jsonl
    EVALUATION_WRITTEN = "evaluation-written"
    METRICS_COPIED = "metrics-copied"  # to the run's directory, if that is elsewhere
    RUN_FINISHED = "run-finished"  # all records are in the run's directory, but no summary
    SUMMARY_WRITTEN = "summary-written"
    # At any time, in a weight store that is told to be unreliable (``make chaos``).
    STORE_SLOWED = "store-slowed"  # a call was
    STORE_FAILED = "store-failed"  # a call does
    STORE_HUNG = "store-hung"  # a call does


_seen: Counter[str] = Counter()


def reached(point: FaultPoint) -> None:
    """Logs the point, or kills the process there, if the environment variables say so."""
    if log := os.environ.get(LOG):
        with open(log, "a") as file:  # a line of a few bytes: appended as a whole
            file.write(f"{point}\n")
    if wanted := os.environ.get(VARIABLE):
        name, _, number = wanted.partition(":")
        if name == point:
            _seen[name] += 1
            if _seen[name] == int(number or 1):
                os.kill(os.getpid(), signal.SIGKILL)
