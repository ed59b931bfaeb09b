"""Shows the status of a run in a terminal."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.liveness.run_status import ControllerStatus, Doing, RunStatus, WorkerStatus
from rlax_plugin.tools.commands.status.bottleneck import bottleneck
from rlax_plugin.tools.commands.status.source import Seen

_UNKNOWN = "-"


def lines_of(seen: Seen, now: float | None = None) -> list[str]:
    """Returns the status as lines of text, without its tables.

    Args:
      now: Unix time of this machine; None: that of the clock.
    """
    now = (time.time() if now is None else now) + seen.ahead_s
    lines = [seen.problem] if seen.problem else []
    if (status := seen.status) is None:
        return lines
    if not seen.ended:
        lines += _doing(status, now)
    if (found := status.controller) is not None:
        lines.append(_pace(found, ended=seen.ended))
        lines.append(_rollouts(found))
        lines += [] if seen.ended else found.failing
        lines += [f"since its start: {text}" for text in found.damaged]
        if found.shares:
            shares = "  ".join(f"{name} {share:.0%}" for name, share in found.shares.items())
            lines.append(f"time of a step: {shares}")
    if not seen.ended and not seen.problem:  # an old status advises nothing
        lines.append(f"bottleneck: {bottleneck(status)}")
    return lines


def rendered(seen: Seen) -> RenderableType:
    """Returns the status with a table of its workers."""
    parts: list[RenderableType] = [Text(line) for line in lines_of(seen)]
    if seen.status is not None and (found := seen.status.controller) is not None:
        parts.append(_workers(found, seen))
    return Group(*parts)


def _doing(status: RunStatus, now: float) -> list[str]:
    lines = [] if status.ledger is None else [_timed("ledger", status.ledger, now)]
    if status.phase is not None:
        return [*lines, _timed("phase", status.phase, now)]
    if status.trainer is not None:
        lines.append(_timed("trainer", status.trainer, now))
    if status.publisher is not None:
        lines.append(_timed("weights", status.publisher, now))
    return lines


def _timed(name: str, doing: Doing, now: float) -> str:
    ends = f" ({doing.ends})" if doing.ends else ""
    return f"{name}: {doing.what}, since {max(0.0, now - doing.since):.0f} s{ends}"


def _pace(found: ControllerStatus, *, ended: bool) -> str:
    step = _UNKNOWN if found.step_s is None else f"{found.step_s:.3g} s"
    left = f"left {_UNKNOWN if found.left_s is None else _duration(found.left_s)}  "
    speed = _UNKNOWN if found.tokens_per_s is None else f"{found.tokens_per_s:,.0f}"
    return (
        f"step {found.step}/{found.steps}  a step {step}  {'' if ended else left}tokens/s {speed}  "
        f"version {found.version}"
    )


def _rollouts(found: ControllerStatus) -> str:
    reward = _UNKNOWN if found.reward_s is None else f"{1e3 * found.reward_s:.3g} ms"
    stale = _UNKNOWN if found.staleness_max is None else f"{found.staleness_max:.0f}"
    return (
        f"batch {found.batch}  samples under way {found.samples}  staleness {stale} of "
        f"{found.max_staleness}  reward of a group {reward}  reissued {found.reissued}"
    )


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def _workers(found: ControllerStatus, seen: Seen) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("worker", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("version", "slots in use", "tokens/s", "heartbeat"):
        table.add_column(column, justify="right")
    for one in found.workers:
        table.add_row(*_row(one, seen))
    for one in found.lost:
        state = f"lost: {one.reason}" + ", frozen" * (one.name in seen.frozen)
        table.add_row(one.name, state, *[_UNKNOWN] * 3, f"{max(0.0, one.silent_s):.1f} s ago")
    if not found.workers and not found.lost:
        table.add_row("none", *[""] * 5)
    return table


def _row(one: WorkerStatus, seen: Seen) -> tuple[str, ...]:
    if seen.ended and one.name not in seen.living:
        # A worker of another machine may live.
        state = "gone" if one.name in seen.marked else "not seen from here"
        return (one.name, state, *[_UNKNOWN] * 4)
    state = "frozen" if one.name in seen.frozen else one.state
    return (
        one.name,
        f"{state}, without a trainer" if seen.ended else state,
        str(one.version) if one.version >= 0 else _UNKNOWN,
        f"{min(one.samples, one.slots)}/{one.slots}",
        _UNKNOWN if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}",
        f"{max(0.0, one.silent_s):.1f} s ago",
    )
