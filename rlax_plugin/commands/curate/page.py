"""The page of ``rlax curate``: pass rates before and after, by domain, and example prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from rlax_plugin.commands.curate.curated import Curated
from rlax_plugin.commands.report.figures import Figure
from rlax_plugin.commands.report.page import render
from rlax_plugin.commands.report.section import (
    PromptList,
    Section,
    ShownPrompt,
    Table,
    shortened,
)
from rlax_plugin.commands.report.series import COLOURS, NEUTRAL, Chart, layout
from rlax_plugin.curation.choosing import REASONS
from rlax_plugin.prompts.table import with_ids
from rlax_plugin.types import Prompt

_BINS = 20
_MOST_DOMAINS = 24  # with a chart of their own
_EXAMPLES = 6  # of each kind


def curation_page(found: Curated, counted: Sequence[dict[str, Any]], out: str) -> str:
    """Returns the whole page, which needs no network.

    Args:
      counted: the result of ``command.counts``.
      out: the file that the page describes.
    """
    table, rule = found.table, found.rule
    passed, failed = (table.column(name).to_numpy() for name in ("passed", "failed"))
    kept = table.column("kept").to_numpy()
    scored = passed + failed
    rate = np.divide(passed, scored, out=np.full(len(scored), np.nan), where=scored > 0)
    charts = [_histogram("rates", "All prompts", rate, kept)]
    of_domains = _of_domains(found, counted, rate, kept)
    sections = [Section("Measured pass rates", charts)]
    if of_domains:
        sections.append(Section("By domain", of_domains, _left_out(counted)))
    return render(
        "curation.html",
        {},
        sections,
        out=out,
        sources=list(found.sources),
        rule=rule,
        figures=_figures(found, counted[0], scored),
        counts=_counts(counted),
        examples=_examples(found, rate, kept),
        texts=len(found.prompts) > 0,
    )


def _figures(found: Curated, all_: dict[str, Any], scored: np.ndarray) -> list[Figure]:
    rule = found.rule
    bound = "measured share" if rule.bound == "mean" else "90 % interval"
    measured = scored[scored > 0]
    samples = f"{measured.mean():.3g} samples each" if len(measured) else ""
    figures = [
        Figure("prompts", f"{all_['before']:,}", f"{len(measured):,} measured, {samples}"),
        Figure("kept", f"{all_['kept']:,}", f"{all_['kept'] / all_['before']:.1%}"),
        Figure("pass rates", f"{rule.low:g} to {rule.high:g}", f"of the {bound}"),
    ]
    if rule.per_domain is not None:
        figures.append(Figure("per domain", f"{rule.per_domain:,}", "at most"))
    return figures


def _counts(counted: Sequence[dict[str, Any]]) -> Table:
    reasons = list(counted[0]["dropped"])
    rows = []
    for one in counted:
        dropped = [one["dropped"].get(reason, 0) for reason in reasons]
        cells = (one["before"], one["kept"], *dropped)
        rows.append((one["domain"] or "(none)", *(f"{cell:,}" for cell in cells)))
    caption = "Prompts before and after, and why the others are not kept"
    return Table(caption, ("domain", "prompts", "kept", *reasons), rows)


def _histogram(key: str, title: str, rate: np.ndarray, kept: np.ndarray) -> Chart:
    edges = np.linspace(0, 1, _BINS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    known = np.isfinite(rate)
    counts = {
        "kept": np.histogram(rate[known & kept], edges)[0],
        "not kept": np.histogram(rate[known & ~kept], edges)[0],
    }
    bars = [
        go.Bar(x=middles, y=values, name=name, marker={"color": colour}, width=1 / _BINS)
        for (name, values), colour in zip(counts.items(), (COLOURS[0], NEUTRAL), strict=True)
    ]
    figure = go.Figure(bars, layout("measured pass rate", "prompts", barmode="stack", bargap=0.05))
    caption = "Both colours together are the prompts before, the first one those that are kept."
    return Chart(key, title, caption, figure)


def _of_domains(
    found: Curated, counted: Sequence[dict[str, Any]], rate: np.ndarray, kept: np.ndarray
) -> list[Chart]:
    domains = found.table.column("domain").combine_chunks().dictionary_encode()
    numbers = {name: number for number, name in enumerate(domains.dictionary.to_pylist())}
    of_n = domains.indices.fill_null(-1).to_numpy(False)
    charts = []
    for index, one in enumerate(counted[1 : 1 + _MOST_DOMAINS]):
        rows = of_n == numbers[one["domain"]]
        title = one["domain"] or "(none)"
        charts.append(_histogram(f"domain-{index}", title, rate[rows], kept[rows]))
    return charts


def _left_out(counted: Sequence[dict[str, Any]]) -> str:
    more = len(counted) - 1 - _MOST_DOMAINS
    return f"{more:,} smaller domains have no chart; the table has them." if more > 0 else ""


def _examples(found: Curated, rate: np.ndarray, kept: np.ndarray) -> list[PromptList]:
    """Returns example prompts: a few that are kept, and a few for each reason to drop one.

    They are spread evenly over the pass rates.
    """
    table = found.table
    why = table.column("reason").to_numpy()
    chosen = {"kept": np.flatnonzero(kept)}
    chosen |= {reason: np.flatnonzero(~kept & (why == reason)) for reason in REASONS}
    picked: dict[str, list[int]] = {}
    for name, rows in chosen.items():
        if len(rows):
            ordered = rows[np.argsort(rate[rows], kind="stable")]
            places = np.linspace(0, len(rows) - 1, min(_EXAMPLES, len(rows))).round().astype(int)
            picked[name] = ordered[places].tolist()
    ids = {table.column("id")[row].as_py() for rows in picked.values() for row in rows}
    prompts = with_ids(found.prompts, ids)
    columns, texts = ("measured", "domain", "id"), len(found.prompts) > 0
    return [
        PromptList(name, columns, [_example(table, row, prompts) for row in rows], texts)
        for name, rows in picked.items()
    ]


def _example(table: Any, row: int, prompts: dict[str, Prompt]) -> ShownPrompt:
    one = table.slice(row, 1).to_pylist()[0]
    scored = one["passed"] + one["failed"]
    measured = f"{one['passed']:.4g} of {scored:.4g} passed" if scored else "not measured"
    prompt = prompts.get(one["id"])
    text = "" if prompt is None else shortened(prompt.text)
    return ShownPrompt((measured, one["domain"] or "", one["id"]), text)
