"""The settings that a plan compares: they change how fast a run is, and how old its samples are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import ConfigError

_SLOTS = (4, 2)  # at most these times fewer and more than the config has
_LAUNCHER = "local"


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
        """True if workers generate for later steps while the trainer trains."""
        return self.max_staleness > self.reload_every

    def overrides(self, rows: int) -> list[str]:
        """Returns the arguments of ``rlax train``; ``rows``: see ``given``."""
        found = [
            f"rlax.launcher.workers={self.workers}",
            f"rlax.rollouts.slots={self.slots}",
            f"rlax.staleness.reload_every={self.reload_every}",
            f"rlax.staleness.max_staleness={self.max_staleness}",
        ]
        if rows:
            found.append(f"gradient_accumulation_steps={self.parts}")
            found.append(f"per_device_batch_size={rows // self.parts}")
        return found


def given(config: ResolvedConfig) -> tuple[Arrangement, int]:
    """Returns the arrangement of a config, and the rows of an update on one device.

    The rows are 0 if the config leaves them to MaxText; then micro-batches stay as they are.

    Raises:
      ConfigError: the plan cannot change this config.
    """
    section, maxtext = config.section, config.maxtext
    launcher = section.launcher
    if launcher.plain_name != _LAUNCHER:
        reason = "is not planned for: rlax plan needs the launcher local"
        raise ConfigError("rlax.launcher", launcher.plain_name, reason)
    workers = int(launcher.options.get("workers", 1))
    parts = maxtext.get("gradient_accumulation_steps", 1)
    size = maxtext.get("per_device_batch_size", 0)
    whole = isinstance(parts, int) and size == int(size)
    stale = section.staleness
    found = Arrangement(
        workers,
        section.rollouts.slots,
        parts if whole else 1,
        stale.reload_every,
        stale.max_staleness,
    )
    return found, parts * int(size) if whole else 0


def calibrations(
    base: Arrangement, rows: int, workers: int, staleness: Sequence[tuple[int, int]]
) -> list[Arrangement]:
    """Returns the arrangements to measure: each speed of the model is in at least two of them.

    Args:
      workers: most workers of the plan.
      staleness: pairs (j, k) of the plan.
    """
    j, k = min(staleness)  # (1, 1), if it is among them
    alone = replace(base, workers=1, reload_every=j, max_staleness=k)
    halved = replace(alone, slots=max(1, base.slots // 2), parts=_finer(base.parts, rows))
    found = [alone, halved]
    if workers > 1:
        found.append(replace(alone, workers=workers))
    for j, k in staleness:
        if k > j:
            overlapped = replace(alone, workers=min(2, workers), reload_every=j, max_staleness=k)
            found.append(overlapped)
            break
    return list(dict.fromkeys(found))


def _finer(parts: int, rows: int) -> int:
    return 2 * parts if rows and rows % (2 * parts) == 0 else parts


def candidates(
    base: Arrangement, rows: int, workers: int, staleness: Sequence[tuple[int, int]], samples: int
) -> Iterator[Arrangement]:
    """Yields the arrangements to compare.

    Args:
      workers: most workers.
      staleness: allowed pairs (j, k).
      samples: of a batch; more slots in all are of no use.
    """
    fewer, more = _SLOTS
    slots = {base.slots}
    for factor in range(1, fewer.bit_length()):
        slots.add(max(1, base.slots >> factor))
    for factor in range(1, more.bit_length()):
        slots.add(base.slots << factor)
    others = (base.parts // 2, 2 * base.parts, 4 * base.parts) if rows else ()
    parts = {n for n in (base.parts, *others) if n}
    for count in range(1, workers + 1):
        for each in sorted(slots):
            if each != base.slots and count * each > 2 * samples:
                continue
            for part in sorted(one for one in parts if rows % one == 0):
                for j, k in staleness:
                    yield Arrangement(count, each, part, j, k)
