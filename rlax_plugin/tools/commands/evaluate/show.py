"""Formats the results of ``rlax eval`` as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.data.curation.pass_rate_files import MeasuredRates
from rlax_plugin.run.evaluation.measures import label
from rlax_plugin.run.evaluation.result import Evaluated

_ALL = "all"


def measures_table(found: Evaluated, title: str) -> Table:
    """Returns a table with every measure of every set and its interval."""
    table = Table(title=title, caption="95 % bootstrap intervals over problems")
    for column in ("set", "measure", "value", "95 % interval"):
        table.add_column(column, justify="left" if column in ("set", "measure") else "right")
    for name, measures in found.sets.items():
        last = list(measures)[-1]
        for index, (measure, estimate) in enumerate(measures.items()):
            low, high = estimate.ci95
            about = [name, f"{estimate.problems} problems", f"x {estimate.n} samples"]
            table.add_row(
                about[index] if index < len(about) else "",
                label(measure),
                f"{estimate.value:.3f}",
                f"[{low:.3f}, {high:.3f}]",
                end_section=measure == last,
            )
    return table


def summaries(rates: MeasuredRates) -> list[dict[str, Any]]:
    """Returns figures of all prompts, and of each domain if there are several, largest first."""
    domains = rates.table.column("domain").combine_chunks().dictionary_encode()
    names: list[str | None] = domains.dictionary.to_pylist()
    found = [_summary(rates, _ALL, np.ones(rates.table.num_rows, bool))]
    if len(names) > 1:
        of_n = domains.indices.fill_null(-1).to_numpy()
        each = [_summary(rates, str(name), of_n == i) for i, name in enumerate(names)]
        found += sorted(each, key=lambda one: -one["prompts"])
    return found


def _summary(rates: MeasuredRates, name: str, rows: np.ndarray) -> dict[str, Any]:
    passed, failed = (values[rows] for values in rates.counts())
    scored = passed + failed
    samples = scored + rates.column("errored")[rows]
    measured = scored > 0
    rate = passed[measured] / scored[measured]

    def mean(column: str) -> float:
        total = float(samples.sum())
        return float(rates.column(column)[rows].sum()) / total if total else 0.0

    return {
        "domain": name,
        "prompts": len(scored),
        "unmeasured": int(np.count_nonzero(~measured)),
        "never_passed": int(np.count_nonzero(rate == 0)),
        "always_passed": int(np.count_nonzero(rate == 1)),
        "between": int(np.count_nonzero((rate > 0) & (rate < 1))),
        "pass_rate": float(rate.mean()) if len(rate) else None,
        "tokens": mean("tokens"),
        "truncated": mean("truncated"),
        "errored": mean("errored"),
    }


def summary_table(found: Sequence[dict[str, Any]], what: str, samples: int) -> Table:
    """Returns a table of prompts by pass rate; errors have a column only if there are some."""
    caption = f"never, always, between: none, all or some of a prompt's {samples} samples passed"
    if unmeasured := found[0]["unmeasured"]:
        caption += f"; {unmeasured:,} prompts, whose rewards all failed, are none of these"
    errors = found[0]["errored"] > 0
    table = Table(title=what, caption=caption, padding=(0, 1, 0, 0))
    table.add_column("domain", overflow="fold")
    counts = ("prompts", "rate", "never", "always", "between")
    for column in (*counts, "tokens", "truncated", *(["errors"] if errors else [])):
        table.add_column(column, justify="right")
    for index, one in enumerate(found):
        rate = one["pass_rate"]
        table.add_row(
            one_line(one["domain"], 40) or "(none)",
            f"{one['prompts']:,}",
            "" if rate is None else f"{rate:.3f}",
            f"{one['never_passed']:,}",
            f"{one['always_passed']:,}",
            f"{one['between']:,}",
            f"{one['tokens']:,.1f}",
            f"{one['truncated']:.1%}",
            *([f"{one['errored']:.1%}"] if errors else []),
            end_section=index == 0,
        )
    return table
