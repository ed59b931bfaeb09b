"""Assembles a page: one file with everything in it, which needs no network."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup

from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.config.identity import leaves
from rlax_plugin.tools.commands.report import figures
from rlax_plugin.tools.commands.report.charts import sections
from rlax_plugin.tools.commands.report.evaluations import Measured
from rlax_plugin.tools.commands.report.figures import time_of_steps
from rlax_plugin.tools.commands.report.rollouts import Rollouts
from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.series import COLOURS, Section
from rlax_plugin.tools.commands.report.x_axes import XAxis, available, table


def packed(text: str) -> str:
    """Compresses a text to gzip in base64, which cannot close the HTML element that contains it."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("rlax_plugin.tools.commands.report")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: harmless(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def source(name: str) -> Markup:
        """Returns a style or script of this package, unescaped."""
        return Markup(loader.get_source(environment, name)[0])

    environment.globals["source"] = source
    return environment


def report_page(
    run: RunData, rollouts: Rollouts, curated: Section, reload_s: float | None = None
) -> str:
    """Returns the page of one run.

    Args:
      curated: see ``sections``.
      reload_s: seconds after which it reloads itself; None: it does not.
    """
    found = sections([run], curated)
    blobs = {"rollouts": rollouts.index}
    blobs |= {f"tokens-{number}": text for number, text in enumerate(rollouts.chunks)}
    return render(
        "report.html",
        blobs if rollouts.shown else {},
        found,
        runs=[run],
        reload_s=reload_s,
        run=run,
        state=figures.state(run),
        figures=figures.figures(run),
        changes=changes(run),
        verdict=figures.verdict(run),
        shown=rollouts.shown,
        recorded=rollouts.recorded,
    )


def compare_page(runs: Sequence[RunData], lines: Sequence[RunData] | None = None) -> str:
    """Returns a page that overlays several runs.

    Args:
      lines: what the charts show, see ``repeats``; None: each run.
    """
    lines = runs if lines is None else lines
    return render(
        "compare.html",
        {},
        sections(lines),
        runs=lines,
        columns=runs,
        colours=COLOURS,
        states=[figures.state(run) for run in runs],
        figures=side_by_side(runs),
        differences=config_differences(runs),
    )


def without_reload(page: str) -> str:
    """Returns a page that does not reload itself."""
    return re.sub(r'<body data-reload-s="[^"]*" data-written="[^"]*">', "<body>", page, count=1)


def render(
    template: str,
    blobs: dict[str, str],
    found: list[Section],
    *,
    runs: Sequence[RunData] = (),
    reload_s: float | None = None,
    **values: Any,
) -> str:
    """Returns a page with the charts of some sections.

    Args:
      template: file name of a template that extends ``base.html``.
      blobs: name -> text for the page's scripts.
      runs: those that the charts show; empty: none has an axis of steps.
      reload_s: see ``report_page``.
      values: values for the template; texts are escaped.
    """
    axes = available(runs)
    texts = {"charts": _charts_json(found, runs, axes)} | blobs
    return (
        _environment()
        .get_template(template)
        .render(
            sections=found,
            blobs={"plotly": _plotly()} | {name: packed(text) for name, text in texts.items()},
            nonce=secrets.token_hex(16),
            runs=runs,
            x_axes=axes,
            reload_s=reload_s,
            written=datetime.now().astimezone().strftime("%H:%M:%S"),
            **values,
        )
    )


@functools.cache
def _plotly() -> str:
    return packed(plotly.offline.get_plotlyjs())


def _charts_json(found: Sequence[Section], runs: Sequence[RunData], axes: Sequence[XAxis]) -> str:
    """Returns the figures of all charts, and the tables that move them to other x axes."""
    charts = {chart.key: chart.figure.to_json() for section in found for chart in section.charts}
    x_axes = {
        "titles": {axis.key: axis.title for axis in axes},
        "tables": [table(run, axes) for run in runs],
    }
    drawn = ",".join(f"{json.dumps(key)}:{text}" for key, text in charts.items())
    return f'{{"x_axes":{json.dumps(x_axes)},"charts":{{{drawn}}}}}'


_MISSING = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of the held-out evaluation, before and after training."""

    held_out: str
    label: str
    problems: int
    before: str
    after: str
    change: str


def changes(run: RunData) -> list[Change]:
    """Returns the held-out evaluation before and after training; a dash if one is missing."""
    before, after = (
        {(m.held_out, m.measure): m for m in run.measured if m.moment == moment}
        for moment in ("before", "after")
    )
    known = before | after
    keys = sorted(known, key=lambda key: (key[0], not known[key].solved, key[1]))
    return [_change(before.get(key), after.get(key)) for key in keys]


def _change(before: Measured | None, after: Measured | None) -> Change:
    known = after or before
    assert known is not None
    change = _MISSING
    if before and after:
        difference = after.estimate.value - before.estimate.value
        change = f"{100 * difference:+.1f} points" if known.solved else f"{difference:+.3f}"
    return Change(
        known.held_out,
        known.label,
        known.estimate.problems,
        _estimate(before),
        _estimate(after),
        change,
    )


def _estimate(measured: Measured | None) -> str:
    if measured is None:
        return _MISSING
    low, high = measured.estimate.ci95
    return f"{measured.estimate.value:.3f} [{low:.3f}, {high:.3f}]"


def side_by_side(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Returns (name, a value per run) for every figure that any run has.

    Runs over the same problems are compared with the first one, paired by problem.
    """
    columns: list[dict[str, str]] = []
    for run in runs:
        column = {"state": figures.state(run)}
        for figure in figures.figures(run):
            # The wall time of a restarted run is another quantity.
            if figure.name == "wall time":
                column["time of all steps"] = time_of_steps(run)
            else:
                column[figure.name] = figure.value
        column |= {f"{c.label} on {c.held_out}": f"{c.before} → {c.after}" for c in changes(run)}
        columns.append(column)
    for run, column in zip(runs[1:], columns[1:], strict=True):
        for name, answered in runs[0].answered.items():
            if name in run.answered:
                what = f"pass@1 on {name}, change from {runs[0].name}"
                column[what] = answered.change_to(run.answered[name])
    names = list(dict.fromkeys(name for column in columns for name in column))
    return [(name, [column.get(name, _MISSING) for column in columns]) for name in names]


def config_differences(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Returns (dotted key, a value per run) for every config key that differs between runs."""
    columns = [{key: str(value) for key, value in leaves(run.config)} for run in runs]
    keys = sorted({key for column in columns for key in column})
    rows = [(key, [column.get(key, _MISSING) for column in columns]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]
