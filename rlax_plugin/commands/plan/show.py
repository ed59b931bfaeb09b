"""Shows a plan: a table for people, a document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.model import Predicted, StepModel
from rlax_plugin.commands.plan.observed import Observed
from rlax_plugin.text.amounts import in_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """A fitted model, and what it says.

    Attributes:
      now: the prediction for the config as it is.
      ranked: all arrangements that fit into the memory, the fastest first.
      too_large: number of those that do not.
      rows: see ``given``.
      left_out: the reason why a usual staleness is not compared; empty: none.
    """

    model: StepModel
    measured: tuple[Observed, ...]
    now: Predicted
    ranked: tuple[Predicted, ...]
    too_large: int
    rows: int
    left_out: str = ""

    def best(self, staleness: tuple[int, int]) -> Predicted | None:
        """Returns the fastest arrangement with a pair (j, k)."""
        same = (one for one in self.ranked if _staleness(one.arrangement) == staleness)
        return next(same, None)


def plan(
    model: StepModel,
    measured: Sequence[Observed],
    base: Arrangement,
    among: Sequence[Arrangement],
    memory_bytes: float,
    rows: int,
    left_out: str = "",
) -> Plan:
    """Ranks arrangements by their predicted time of a step.

    Of two that take the same time, the one with less memory comes first.
    """
    each = [model.predict(one) for one in among]
    fit = [one for one in each if one.bytes <= memory_bytes]
    ranked = sorted(fit, key=lambda one: (one.step_s, one.bytes, one.arrangement))
    now, too_large = model.predict(base), len(each) - len(fit)
    return Plan(model, tuple(measured), now, tuple(ranked), too_large, rows, left_out)


def table(found: Plan, top: int) -> Table:
    """Returns the fastest arrangements, beside the config as it is."""
    made = Table(
        title="predicted time of a step",
        caption="limit: what a step waits for. (j, k): rlax.staleness, (1, 1) is on-policy",
        padding=(0, 1, 0, 0),
    )
    for name in ("", "workers", "slots", "micro-batches", "(j, k)", "step s", "of now", "memory"):
        made.add_column(name, justify="right")
    made.add_column("limit")
    rows = [("now", found.now), *((str(i), one) for i, one in enumerate(found.ranked[:top], 1))]
    for name, one in rows:
        made.add_row(
            name,
            str(one.arrangement.workers),
            str(one.arrangement.slots),
            str(one.arrangement.parts),
            str(_staleness(one.arrangement)),
            f"{one.step_s:.3g}",
            f"{one.step_s / found.now.step_s:.0%}",
            in_bytes(one.bytes),
            one.limit,
            end_section=name == "now",
        )
    return made


def sentences(found: Plan) -> list[str]:
    """Returns how good the fit is, and the arguments of the fastest arrangements."""
    errors = [
        abs(found.model.predict(one.arrangement).step_s / one.step_s - 1) for one in found.measured
    ]
    said = [
        f"fitted to {len(errors)} short runs; the largest error of their steps is "
        f"{max(errors):.0%}. Other work on this machine, and samples that grow longer, change it"
    ]
    if found.too_large:
        said.append(f"{found.too_large} arrangements are left out: they need more memory")
    if found.left_out:
        said.append(found.left_out)
    pairs = dict.fromkeys(_staleness(one.arrangement) for one in found.ranked)
    for pair in sorted(pairs):
        if (one := found.best(pair)) is not None:
            arguments = " ".join(one.arrangement.overrides(found.rows))
            said.append(f"fastest with (j, k) = {pair}, {one.step_s:.3g} s: {arguments}")
    return said


def document(found: Plan) -> dict[str, Any]:
    """Returns all of it as JSON has it; NaN, where a run did not measure, is null."""
    return {
        "now": _as_json(found.now, found.rows),
        "ranked": [_as_json(one, found.rows) for one in found.ranked],
        "too_large": found.too_large,
        "left_out": found.left_out,
        "model": asdict(found.model),
        "measured": [
            {name: None if value != value else value for name, value in asdict(one).items()}
            for one in found.measured
        ],
    }


def _as_json(one: Predicted, rows: int) -> dict[str, Any]:
    return asdict(one) | {"arguments": one.arrangement.overrides(rows)}


def _staleness(one: Arrangement) -> tuple[int, int]:
    return one.reload_every, one.max_staleness
