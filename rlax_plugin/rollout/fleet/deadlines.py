"""Computes the minimum of each deadline, for a config's work at assumed or measured speeds.

``rlax check`` assumes the speeds, and ``Pace`` measures those of a run's machines. Only deadlines
that depend on the work are here. ``heartbeat_s``, ``rpc_s`` and ``reward_s`` do not, and neither
does ``lease_s``: a reader renews its lease three times in that time, however long it reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlax_plugin.base.errors import DeadlineError
from rlax_plugin.base.text.amounts import in_bytes, in_seconds
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.config import Assume, RlaxSection
from rlax_plugin.rollout.fleet.fleet import FleetListener, Worker
from rlax_plugin.weights.publisher import WriteTimes

log = logging.getLogger("rlax.controller")

_MARGIN = 1.2  # of what is suggested, to what is needed
_MOST_GONE = 1000  # workers whose speeds are kept: one may come back
_SPEEDS = (1e-6, 1e15)  # per second; what a worker says beyond them is nonsense
_GENERATING, _MOVING = frozenset({"tokens_per_s"}), frozenset({"bytes_per_s"})


@dataclass(frozen=True, slots=True)
class Rates:
    """The speeds of a run's machines.

    Attributes:
      tokens_per_s: decoding speed of one sequence on a worker.
      prefill_tokens_per_s: prefill speed of one worker.
      bytes_per_s: speed of writing, streaming or reading a weight version, whichever is slowest.
      startup_s: seconds until a worker has imported and compiled its model.
      measured: names of the speeds that were measured; the others are assumed.
    """

    tokens_per_s: float
    prefill_tokens_per_s: float
    bytes_per_s: float
    startup_s: float
    measured: frozenset[str] = frozenset()

    @classmethod
    def assumed(cls, assume: Assume) -> Rates:
        """Returns the speeds of ``rlax.deadlines.assume``."""
        return cls(**assume.model_dump())


@dataclass(frozen=True, slots=True)
class Need:
    """The minimum of one deadline.

    Attributes:
      key: dotted config key of the deadline.
      given_s: its value in the config.
      needed_s: seconds of work that it must allow for.
      why: that work, described in figures.
      measured: True if a speed behind it was measured; False if all are assumed.
    """

    key: str
    given_s: float
    needed_s: float
    why: str
    measured: bool = False

    @property
    def holds(self) -> bool:
        return self.given_s >= self.needed_s

    @property
    def suggested_s(self) -> float:
        """The minimum plus a fifth, rounded up to two digits."""
        wanted_s = _MARGIN * self.needed_s
        unit = 10 ** max(0, math.floor(math.log10(max(wanted_s, 1))) - 1)
        return float(math.ceil(wanted_s / unit) * unit)

    @property
    def text(self) -> str:
        """Explains why the value is too short, and suggests another."""
        speeds = "measured speeds" if self.measured else "the speeds of rlax.deadlines.assume"
        return (
            f"= {self.given_s:g} s is too short: {self.why}, at {speeds}. "
            f"Set it to {self.suggested_s:g}"
        )


def needs(
    section: RlaxSection,
    rates: Rates,
    *,
    slots: Sequence[int],
    weights_bytes: int | None,
    silent_tokens: int | None,
) -> dict[str, Need]:
    """Returns key below ``rlax.deadlines`` -> its minimum.

    Args:
      slots: the slots of each worker that shares the groups of a step.
      weights_bytes: size of one weight version; None: unknown, so only generation counts.
      silent_tokens: most tokens of a sequence that an engine decodes before it reports progress;
        None: unknown, so an engine may report none before a sample is complete.
    """
    found = {
        "group_s": _group(section, rates, max(slots), silent_tokens),
        "batch_s": _batch(section, rates, slots, None),
    }
    if weights_bytes is not None:
        found |= {
            "batch_s": _batch(section, rates, slots, weights_bytes),
            "weights_s": _weights(section, rates, weights_bytes, len(slots)),
            "startup_s": _startup(section, rates, weights_bytes, len(slots)),
        }
    return found


@contextlib.contextmanager
def while_loading(
    section: RlaxSection, version: WeightVersion, figures: Callable[[], Mapping[str, float]]
) -> Iterator[None]:
    """Adds the needed seconds to a ``DeadlineError`` raised while an engine loads a version.

    Args:
      figures: see ``loading_s``.
    """
    try:
        yield
    except DeadlineError as error:
        if error.needed_s is not None:  # the store could tell
            raise
        needed_s = loading_s(section, version, figures())
        raise DeadlineError(error.what, error.seconds, error.key, needed_s) from error


def loading_s(
    section: RlaxSection, version: WeightVersion, figures: Mapping[str, float]
) -> float | None:
    """Returns the seconds a worker needs to load a version; None if its size is unknown.

    Args:
      figures: of the worker; its newest read gives the speed, unless it was of less than half a
        version. Otherwise the speed is assumed.
    """
    if (size := _size(version)) is None:
        return None
    assume = section.deadlines.assume
    read_bytes, read_s = figures.get("read_bytes", 0.0), figures.get("read_s", 0.0)
    # The time to read changes alone says little of the time to read a complete version.
    measured = read_s > 0 and 2 * read_bytes >= size > 0
    rate = read_bytes / read_s if measured else assume.bytes_per_s
    return size / rate


def _size(version: WeightVersion) -> int | None:
    """Returns the bytes of a version's tensors; None if a dtype is unknown here."""
    try:
        return sum(tensor.nbytes for tensor in version.tensors.values())
    except TypeError:  # a dtype of an accelerator, before anything has imported JAX
        return None


def _group(section: RlaxSection, rates: Rates, slots: int, silent_tokens: int | None) -> Need:
    """Returns the minimum of ``group_s``, after which a group without progress expires."""
    most = section.rollouts.max_new_tokens
    tokens = most if silent_tokens is None else min(silent_tokens, most)
    # The fewer samples of a prompt, the more prompts are prefilled for all slots.
    evaluated = section.evaluation.fewest_samples or section.rollouts.group_size
    prefill_tokens = _prefill_tokens(section, slots, min(evaluated, section.rollouts.group_size))
    prefill_s = prefill_tokens / rates.prefill_tokens_per_s
    needed_s = prefill_s + tokens / rates.tokens_per_s
    why = f"{tokens:,} tokens of a sequence take {in_seconds(needed_s)}"
    if prefill_s >= 1:
        why += f" ({in_seconds(prefill_s)} of it for prefills of {prefill_tokens:,} tokens)"
    if silent_tokens is None:
        why += ", and the engine may report no progress before that"
    return _need(section, "group_s", needed_s, why, rates, _GENERATING)


def _batch(
    section: RlaxSection, rates: Rates, slots: Sequence[int], weights_bytes: int | None
) -> Need:
    """Returns the minimum of ``batch_s``, the trainer's wait from a new version to a batch.

    In lockstep no group is begun before workers hold that version. Further ahead, and with
    ``finish``, running samples end first. Groups that filters reject are not counted.
    """
    rollouts = section.rollouts
    samples, at_once = rollouts.groups_per_step * rollouts.group_size, sum(slots)
    if section.deterministic:  # one group after the other
        at_once = rollouts.group_size * len(slots)
    waves = math.ceil(samples / at_once)
    one_s = sample_s(section, rates, max(slots))
    all_s = waves * one_s
    parts = [
        (all_s, f"{in_seconds(all_s)} for {samples:,} samples, {min(samples, at_once):,} at once")
    ]
    if rollouts.on_new_weights == "finish" and section.staleness.steps_ahead > 1:
        parts.append((one_s, f"{in_seconds(one_s)} for running samples to end"))
    if weights_bytes is not None:
        moves, how = _moves(section, rates, len(slots))
        pull_s = (2 + moves) * weights_bytes / rates.bytes_per_s
        parts.append((pull_s, f"{in_seconds(pull_s)} to write{how} and read a weight version"))
    reward_s = section.deadlines.reward_s
    parts.append((reward_s, f"{in_seconds(reward_s)} for a reward"))
    needed_s = sum(seconds for seconds, _ in parts)
    why = f"a batch takes {', '.join(text for _, text in parts)}, together {in_seconds(needed_s)}"
    if section.curation.filters:
        why += " and more if filters reject groups"
    return _need(section, "batch_s", needed_s, why, rates, _GENERATING | _MOVING)


def _moves(section: RlaxSection, rates: Rates, workers: int) -> tuple[int, str]:
    """Returns how often a version is sent before a worker has it, and a word for it.

    All workers receive it through the connection of one server. A measured speed is that of one of
    them, while the others received it too.
    """
    if section.weights.transfer == "path":
        return 0, ""
    measured = "bytes_per_s" in rates.measured
    return (1, ", stream") if measured or workers == 1 else (workers, f", stream to {workers}")


def _weights(section: RlaxSection, rates: Rates, weights_bytes: int, workers: int) -> Need:
    moves, _ = _moves(section, rates, workers)
    needed_s = max(1, moves) * weights_bytes / rates.bytes_per_s
    why = f"a weight version of {in_bytes(weights_bytes)} takes {in_seconds(needed_s)}"
    if moves > 1:
        why += f" until {moves} workers have received it"
    return _need(section, "weights_s", needed_s, why, rates, _MOVING)


def _startup(section: RlaxSection, rates: Rates, weights_bytes: int, workers: int) -> Need:
    """Returns the minimum of ``startup_s``, from the first version to the first ready worker."""
    moves, how = _moves(section, rates, workers)
    pull_s = (2 + moves) * weights_bytes / rates.bytes_per_s
    needed_s = rates.startup_s + pull_s
    how = how and ", streamed"
    why = (
        f"the first worker takes {in_seconds(rates.startup_s)} to import and compile, and "
        f"{in_seconds(pull_s)} until its weights are written{how} and read, "
        f"together {in_seconds(needed_s)}"
    )
    return _need(section, "startup_s", needed_s, why, rates, _MOVING)


def sample_s(section: RlaxSection, rates: Rates, slots: int) -> float:
    """Returns the seconds of one sample, from entering one of ``slots`` to its last token."""
    return (
        _prefill_tokens(section, slots, section.rollouts.group_size) / rates.prefill_tokens_per_s
        + section.rollouts.max_new_tokens / rates.tokens_per_s
    )


def _prefill_tokens(section: RlaxSection, slots: int, samples: int) -> int:
    """Returns the most tokens that a worker prefills while one sample waits.

    These are the prompts of all groups that fit in its slots; with ``continue`` also all running
    samples once, because it continues them with new weights.

    Args:
      slots: of the worker.
      samples: of each prompt.
    """
    rollouts = section.rollouts
    prompts = math.ceil(slots / samples)
    again = slots * section.sequence_tokens if rollouts.on_new_weights == "continue" else 0
    if section.several_turns:  # the prefill of a later turn, in every slot
        again += rollouts.slots * section.max_context_tokens
    return prompts * rollouts.max_prompt_tokens + again


def _need(
    section: RlaxSection, name: str, needed_s: float, why: str, rates: Rates, uses: frozenset[str]
) -> Need:
    given_s: float = getattr(section.deadlines, name)
    return Need(f"rlax.deadlines.{name}", given_s, needed_s, why, bool(uses & rates.measured))


class Pace(FleetListener, WriteTimes):
    """The minimum of deadlines, at the speeds measured so far.

    Until a speed is measured, ``rlax.deadlines.assume`` holds. Speeds are those of the slowest
    worker, and of writing, streaming or reading weights, whichever is slowest.

    Args:
      workers: the live workers.
      launched: number of workers that the launcher starts; None: unknown.
      warn: called with one sentence for each deadline that will not hold: once at assumed speeds,
        and once at measured ones. None: no warnings.

    Attributes:
      launched: see above.
    """

    def __init__(
        self,
        section: RlaxSection,
        workers: Mapping[str, Worker],
        launched: int | None = None,
        warn: Callable[[str], None] | None = None,
    ):
        self._section, self._workers, self._warn = section, workers, warn
        self.launched = launched
        self._weights_bytes: int | None = None
        self._first: dict[tuple[str, str], tuple[float, float]] = {}  # identity -> steps, seconds
        self._tokens_per_s: dict[tuple[str, str], float] = {}
        self._read_bytes_per_s: dict[tuple[str, str], float] = {}
        self._streamed_bytes_per_s: dict[tuple[str, str], float] = {}
        self._written_bytes_per_s: dict[None, float] = {}
        self._said: set[tuple[str, bool]] = set()
        self._heard = 0  # heartbeats since the last look

    def worker_heard(self, worker: Worker) -> None:
        """Takes the speeds from the figures of a heartbeat."""
        figures, who = worker.figures, worker.identity
        steps, decode_s = figures.get("steps_total", 0.0), figures.get("decode_s_total", 0.0)
        if steps > 0:  # what is in the first report may have been compiling
            first_steps, first_s = self._first.setdefault(who, (steps, decode_s))
            _keep(self._tokens_per_s, who, steps - first_steps, decode_s - first_s)
        size, read_s = figures.get("read_bytes", 0.0), figures.get("read_s", 0.0)
        self._moved(self._read_bytes_per_s, who, size, read_s)
        size, stream_s = figures.get("stream_bytes", 0.0), figures.get("stream_s", 0.0)
        self._moved(self._streamed_bytes_per_s, who, size, stream_s)
        # A look is at all workers: many of them take turns, so that a heartbeat stays as cheap.
        self._heard += 1
        if self._heard >= len(self._workers):
            self._forget()
            self.look()

    def _forget(self) -> None:
        """Drops the speeds of workers that have gone, once there are many."""
        live = {worker.identity for worker in self._workers.values()}
        for speeds in (self._first, self._tokens_per_s, *self._bytes_per_s):
            if len(speeds) > 2 * len(live) + _MOST_GONE:
                for who in [one for one in speeds if one not in live]:
                    del speeds[who]

    @property
    def _bytes_per_s(self) -> tuple[dict[tuple[str, str], float], ...]:
        """Speeds of workers: of reading files, and of receiving them."""
        return self._read_bytes_per_s, self._streamed_bytes_per_s

    def weighs(self, size: int) -> None:
        """Takes the size of a weight version in bytes, before it is written."""
        self._weights_bytes = size

    def wrote(self, size: int, seconds: float) -> None:
        """Takes the seconds that writing this many bytes took."""
        self._moved(self._written_bytes_per_s, None, size, seconds)
        self.look()

    def _moved[K](self, rates: dict[K, float], key: K, size: float, seconds: float) -> None:
        """Stores the speed of a transfer, unless it was only of what has changed in a version.

        That takes a time which depends little on its size.
        """
        if 2 * size >= (self._weights_bytes or 0):
            _keep(rates, key, size, seconds)

    def needed_s(self, name: str) -> float | None:
        """Returns the minimum of ``rlax.deadlines.<name>``; None: unknown. Any thread."""
        need = self._needs().get(name)
        return None if need is None else need.needed_s

    def generating_s(self, samples: int) -> float:
        """Returns the seconds to generate samples of the greatest length on all workers."""
        slots = self._slots()
        waves = math.ceil(samples / max(1, sum(slots)))
        return waves * sample_s(self._section, self._rates(), max(slots))

    def look(self) -> None:
        """Warns once of each deadline that is too short."""
        self._heard = 0
        if self._warn is None:
            return
        # The first worker is ready before a speed is measured; rlax check says what that takes. And
        # an engine that does not say how often it shows progress may well show some.
        unwatched = {"startup_s"} | ({"group_s"} if self._silent_tokens() is None else set())
        for name, need in self._needs().items():
            if need.holds or name in unwatched or (name, need.measured) in self._said:
                continue
            self._said |= {(name, need.measured)}
            text = f"warning: {need.key} {need.text}"
            log.warning("%s", text)
            self._warn(text)

    def _needs(self) -> Mapping[str, Need]:
        return needs(
            self._section,
            self._rates(),
            slots=self._slots(),
            weights_bytes=self._weights_bytes,
            silent_tokens=self._silent_tokens(),
        )

    def _slots(self) -> list[int]:
        """Returns the slots of each worker, with the expected ones that have not registered."""
        live = [worker.slots for worker in list(self._workers.values())]
        return live + [self._section.rollouts.slots] * ((self.launched or 1) - len(live))

    def _silent_tokens(self) -> int | None:
        """Returns the ``silent_tokens`` that the workers report, see ``CheckResult``."""
        told = [w.figures.get("silent_tokens", 0.0) for w in list(self._workers.values())]
        return max((int(one) for one in told if 1 <= one < math.inf), default=None)

    def _rates(self) -> Rates:
        live = {worker.identity for worker in list(self._workers.values())}
        tokens = [rate for who, rate in list(self._tokens_per_s.items()) if who in live]
        moved = [one for speeds in self._bytes_per_s for one in list(speeds.items())]
        sizes = [rate for who, rate in moved if who in live]
        sizes += self._written_bytes_per_s.values()
        measured = {"tokens_per_s": tokens, "bytes_per_s": sizes}
        found = {name: min(rates) for name, rates in measured.items() if rates}
        assumed = Rates.assumed(self._section.deadlines.assume)
        return dataclasses.replace(assumed, **found, measured=frozenset(found))


def _keep[K](rates: dict[K, float], key: K, amount: float, seconds: float) -> None:
    """Stores a speed if it is plausible."""
    least, most = _SPEEDS
    if seconds > 0 and least < (rate := amount / seconds) < most:
        rates[key] = rate
