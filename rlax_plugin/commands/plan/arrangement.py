"""The settings that a plan compares: they change how fast a run is, and how old its samples are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import ConfigError

_LAUNCHER = "local"
_APART = "trainer_threads"  # its option
_PARTS, _SIZE = "gradient_accumulation_steps", "per_device_batch_size"


@dataclass(frozen=True, slots=True, order=True)
class Arrangement:
    """One way to do the work of a step.

    Attributes:
      workers: of the launcher.
      slots: of each worker.
      parts: micro-batches of an update, ``gradient_accumulation_steps``.
      reload_every: j, see ``Staleness``.
      max_staleness: k.
    """

    workers: int
    slots: int
    parts: int
    reload_every: int = 1
    max_staleness: int = 1

    @property
    def staleness(self) -> tuple[int, int]:
        """The pair (j, k)."""
        return self.reload_every, self.max_staleness

    @property
    def overlaps(self) -> bool:
        """True if workers generate for the next step while the trainer trains.

        With k = 1 a step needs samples of the newest weights, which do not exist until the step
        before it has ended.
        """
        return self.max_staleness > 1

    @property
    def name(self) -> str:
        """The name of a run in this arrangement."""
        stale = f"j{self.reload_every}-k{self.max_staleness}"
        return f"workers{self.workers}-slots{self.slots}-parts{self.parts}-{stale}"

    def overrides(self, rows: int) -> list[str]:
        """Returns the arguments of ``rlax train``; ``rows``: see ``given``."""
        found = [
            f"rlax.launcher.workers={self.workers}",
            f"rlax.rollouts.slots={self.slots}",
            f"rlax.staleness.reload_every={self.reload_every}",
            f"rlax.staleness.max_staleness={self.max_staleness}",
        ]
        if rows:
            found.append(f"{_PARTS}={self.parts}")
            found.append(f"{_SIZE}={rows // self.parts}")
        return found


def given(config: ResolvedConfig) -> tuple[Arrangement, int]:
    """Returns the arrangement of a config, and the rows of an update on one device.

    The rows are 0 if the config leaves them to MaxText, or has less than one for each device; then
    micro-batches stay as they are.

    Raises:
      ConfigError: the plan cannot change this config.
    """
    section, maxtext = config.section, config.maxtext
    launcher = section.launcher
    if launcher.plain_name != _LAUNCHER:
        reason = "is not planned for: rlax plan needs the launcher local"
        raise ConfigError("rlax.launcher", launcher.plain_name, reason)
    if section.deterministic:
        reason = "is not planned for: groups are then decoded one by one, whatever the slots are"
        raise ConfigError("rlax.deterministic", True, reason)
    if launcher.options.get(_APART):
        reason = "is not planned for: leave it out, and rlax plan shares all cores"
        raise ConfigError(f"rlax.launcher.{_APART}", launcher.options[_APART], reason)
    parts, size = _whole(_PARTS, maxtext.get(_PARTS, 1)), maxtext.get(_SIZE)
    left = _SIZE not in maxtext or (isinstance(size, float) and 0 < size < 1)
    rows = 0 if left else parts * _whole(_SIZE, size)
    stale = section.staleness
    workers = int(launcher.options.get("workers", 1))
    found = Arrangement(
        workers, section.rollouts.slots, parts, stale.reload_every, stale.max_staleness
    )
    return found, rows


def _whole(key: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(key, value, "must be a whole number, at least 1")
    return value


def calibrations(
    base: Arrangement, rows: int, workers: int, staleness: Sequence[tuple[int, int]]
) -> list[Arrangement]:
    """Returns the arrangements to measure; the first has one worker and is on-policy.

    Slots, and micro-batches where the rows allow it, are different in the second, workers in the
    third, and in the last one generation and training overlap, if ``staleness`` has such a pair.

    Args:
      rows: see ``given``.
      workers: most workers of the plan.
      staleness: pairs (j, k) of the plan.
    """
    alone = replace(base, workers=1, reload_every=1, max_staleness=1)
    slots = base.slots // 2 or 2
    found = [alone, replace(alone, slots=slots, parts=_other_parts(base.parts, rows))]
    if workers > 1:
        found.append(replace(alone, workers=2))
    if late := [pair for pair in staleness if pair[1] > 1]:
        j, k = min(late)
        found.append(replace(alone, workers=min(2, workers), reload_every=j, max_staleness=k))
    return list(dict.fromkeys(found))


def _other_parts(parts: int, rows: int) -> int:
    """Returns another number of micro-batches, if the rows allow one."""
    if rows and rows % (2 * parts) == 0:
        return 2 * parts
    return parts // 2 if rows and parts % 2 == 0 else parts


def candidates(
    base: Arrangement, rows: int, workers: int, staleness: Sequence[tuple[int, int]], samples: int
) -> Iterator[Arrangement]:
    """Yields the arrangements to compare.

    They have a quarter to twice the slots of the config, and half to four times its micro-batches,
    where its numbers can be divided so.

    Args:
      workers: most workers.
      staleness: allowed pairs (j, k).
      samples: of a batch; more slots in all are of no use.
    """
    slots = {base.slots, 2 * base.slots}
    slots |= {base.slots // n for n in (2, 4) if base.slots % n == 0}
    parts = {base.parts}
    if _other_parts(base.parts, rows) != base.parts:  # otherwise their price is not measured
        parts |= {n for n in (2 * base.parts, 4 * base.parts) if rows % n == 0}
        parts |= {base.parts // 2} if base.parts % 2 == 0 else set()
    for count in range(1, workers + 1):
        for each in sorted(slots):
            if each > base.slots and count * each > 2 * samples:
                continue
            for part in sorted(parts):
                for j, k in staleness:
                    yield Arrangement(count, each, part, j, k)
