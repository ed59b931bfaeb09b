"""Shows a plan: a table for people, a document for programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.table import Table

from rlax_plugin.commands.plan.model import Predicted
from rlax_plugin.commands.plan.ranking import Plan
from rlax_plugin.text.amounts import in_bytes


def table(found: Plan, top: int) -> Table:
    """Returns the fastest arrangements, beside the config as it is."""
    made = Table(
        title="predicted time of a step",
        caption="limit: the part that has to be faster for a faster step. (j, k): rlax.staleness, "
        "(1, 1) is on-policy",
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
            str(one.arrangement.staleness),
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
    if not found.ranked:
        said.append(f"nothing fits: the smallest arrangement needs {in_bytes(found.least_bytes)}")
    said.extend(found.left_out)
    pairs = dict.fromkeys(one.arrangement.staleness for one in found.ranked)
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
        "measured": [_plain(asdict(one)) for one in found.measured],
    }


def _plain(value: Any) -> Any:
    """Returns a value without NaN, for which JSON has no word."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _as_json(one: Predicted, rows: int) -> dict[str, Any]:
    return asdict(one) | {"arguments": one.arrangement.overrides(rows)}
