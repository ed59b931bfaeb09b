"""The status of a run: what it does, how fast, and what it waits for; written, sent and read."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.text.harmless import one_line

_LONGEST = 300
_CUT = 40  # characters of the note that a text was cut, at most
_LONGEST_EVERY_S = 60.0  # with more, an old status would never be old
MOST_SHOWN = 8
"""Groups and jobs in a status: those that take longest."""

SLOW_S = 5.0
"""Seconds below which no wait is worth a word."""

TIMES = 10
"""A wait that takes so many times as long as usual is a finding of ``rlax doctor``."""

COLOCATED = "colocated"
"""The name of the worker in the trainer's own process, which takes turns with training.

Those in the processes of its other hosts have this name with ``-`` and the host's number.
"""

SILENT = "silent"
"""The state of a worker whose heartbeats are overdue."""

MOST = 1e12
"""No number of a status is larger: a file that says otherwise would fill the terminal."""

NOW_MOST = 1e11
"""No Unix time of a status or a mark is later."""


def shown(text: str) -> str:
    """Returns text in the form that a status can hold: harmless and short."""
    line = one_line(text, _LONGEST)
    return line if len(line) <= _LONGEST else one_line(text, _LONGEST - _CUT)


Text = Annotated[str, Field(max_length=_LONGEST), AfterValidator(shown)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-MOST, le=MOST)]
Moment = Annotated[float, Field(allow_inf_nan=False, ge=0, le=NOW_MOST)]
Seconds = Annotated[float, Field(allow_inf_nan=False, ge=0, le=MOST)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1000)]
Count = Annotated[int, Field(ge=0, le=int(MOST))]
Version = Annotated[int, Field(ge=-1, le=int(MOST))]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Doing(_Part):
    """One thing that is being done or waited for.

    Attributes:
      what: it, in words.
      since: Unix time at which it began.
      ends: the deadline that ends it, in words; may be empty.
    """

    what: Text
    since: Moment
    ends: Text = ""


class WorkerStatus(_Part):
    """A live worker.

    Attributes:
      version: the weight version that it generates with; -1: none yet.
      samples: assigned to it, generating or waiting there.
      slots: sequences that it decodes at once.
      tokens_per_s: generated since the status before; None: unknown.
      silent_s: seconds since its last heartbeat.
      clock_s: seconds by which its clock is ahead of the trainer's; None: unknown.
      state: ``generates``, ``idle``, ``loads weights``, ``drains``, ``pinned to version 3``,
        ``rests: lost 3 times``, or ``SILENT``.
      loading_s: seconds for which it has been loading a version; None: it loads none.
      load_failures: number of times in the last minute that it could not read a version.
      suspicion: a sentence on answers that cannot be right; empty: there are none.
      speed: of one of its slots, as a multiple of the median worker's; 1: about the same, or
        unknown.
    """

    name: Text
    version: Version
    samples: Count
    slots: Count
    tokens_per_s: Number | None
    silent_s: Number
    clock_s: Number | None
    state: Text
    loading_s: Number | None = None
    load_failures: Count = 0
    suspicion: Text = ""
    speed: Number = 1.0

    @property
    def slowness(self) -> str:
        """A sentence on a speed below half the median's, with which it gets less work; or empty."""
        if self.speed >= 0.5:
            return ""
        return f"worker {self.name} decodes at {self.speed:.0%} of the median worker's speed"


class LossStatus(_Part):
    """The losses of one worker in the last ten minutes, although it may be back.

    Attributes:
      at: Unix time of the newest; ``reason``: of that one.
      count: number of losses.
      away: True if it has not registered again.
      silent_s: seconds since its last heartbeat before the newest.
    """

    name: Text
    reason: Text
    at: Moment
    count: Count
    away: bool = False
    silent_s: Number = 0.0


class GroupStatus(_Part):
    """A request that waits or is being generated.

    Attributes:
      what: its purpose and group, such as ``group 12`` or ``evaluation group 3``.
      prompt: id of its prompt; may be empty.
      worker: that has it; empty: it waits for one.
      since: Unix time at which it was requested.
      still_s: seconds for which the worker reports no progress of it.
      ends: the deadline that ends it, in words.
      unknown: True if its worker does not have it, as the worker's heartbeats say.
    """

    what: Text
    prompt: Text
    worker: Text
    since: Moment
    still_s: Number
    ends: Text
    unknown: bool = False


class JobStatus(_Part):
    """A reward or an episode that is being computed.

    Attributes:
      what: ``a reward`` or ``an episode``.
      used_s: seconds that it has used of ``limit_s``, which is ``samples`` times the value of the
        config key ``key``.
      pid: the reward process.
    """

    what: Text
    prompt: Text
    used_s: Number
    limit_s: Number
    key: Text
    pid: Count
    samples: Count = 1


class ControllerStatus(_Part):
    """The part of a status that only the controller's event loop knows.

    Attributes:
      seen: Unix time at which the event loop said it.
      step: the last finished step; ``steps``: the last one of the run.
      step_at: Unix time at which this process saw the last step end; None: none has.
      version: the newest published weight version.
      step_s: median seconds of a step; None: unknown. ``left_s``: estimate to the end.
      shares: phase -> share of the time of the last steps.
      reward_s: mean seconds to score a group; None: unknown.
      slots_used: share of the workers' slots that are in use, averaged over the last heartbeats;
        ``rewards_used``: that of the reward processes. None: unknown.
      reward_error: the newest error of a reward, if most calls of rewards fail; empty: they do not.
      wanted: number of workers that the launcher keeps; None: unknown.
      failing: a sentence for each worker that the launcher cannot keep running at present.
      damaged: a sentence for each record that this process has found damaged and does without.
    """

    seen: Moment
    step: Count
    steps: Count
    version: Version
    step_at: Moment | None = None
    step_s: Seconds | None = None
    left_s: Seconds | None = None
    tokens_per_s: Number | None = None
    shares: dict[Text, Share] = {}
    staleness_mean: Number | None = None
    staleness_max: Number | None = None
    max_staleness: Count = 1
    reward_s: Number | None = None
    reward_processes: Count = 0
    slots_used: Share | None = None
    rewards_used: Share | None = None
    reward_error: Text = ""
    replaced: Count = 0
    reissued: Count = 0
    samples: Count = 0
    batch: Text = ""
    wanted: Count | None = None
    workers: tuple[WorkerStatus, ...] = ()
    failing: tuple[Text, ...] = ()
    losses: tuple[LossStatus, ...] = ()
    damaged: tuple[Text, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    jobs: tuple[JobStatus, ...] = ()

    @property
    def lost(self) -> list[LossStatus]:
        """The workers that were lost and are away."""
        return [one for one in self.losses if one.away]


class FailedAttempts(_Part):
    """Attempts of the last minute that failed, and are repeated.

    Attributes:
      what: the newest of them, with its error.
      at: Unix time of the newest.
    """

    what: Text
    at: Moment
    count: Count


class RunStatus(_Part):
    """The status of a run.

    Attributes:
      at: Unix time at which it was written.
      pid: the trainer's process.
      every_s: seconds between two of them.
      phase: the wait before training, or after it; None: the run trains.
      trainer: activity of the trainer's thread; None: it has not begun.
      publisher: the weight version that is being published; None: none is.
      unwritten: attempts to write weights that have failed; None: none has, for a minute.
      ledger: the wait for another process that has the ledger locked; None: there is none.
      controller: None until the controller runs.
    """

    at: Moment
    pid: Count
    every_s: Annotated[float, Field(gt=0, le=_LONGEST_EVERY_S)]
    phase: Doing | None = None
    trainer: Doing | None = None
    publisher: Doing | None = None
    unwritten: FailedAttempts | None = None
    ledger: Doing | None = None
    controller: ControllerStatus | None = None


def read_status(data: bytes, where: str) -> RunStatus:
    """Reads a status.

    Raises:
      RlaxError: it is malformed.
    """
    try:
        return RunStatus.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        said = one_line(f"{place}: {first['msg']}", _LONGEST)
        raise RlaxError(f"{where} holds no status of a run: {said}") from None


def finite(value: float | None) -> float | None:
    """Returns a number that a status can hold, or None for any other, such as NaN."""
    return float(value) if value is not None and abs(value) <= MOST else None
