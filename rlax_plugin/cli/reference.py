"""Commands that teach the config: config, metrics."""

from __future__ import annotations

from typing import Annotated

import typer

from rlax_plugin.cli.common import CONFIGURE, command, exit_status


@command(CONFIGURE, "rlax config rlax.rollouts")
def config(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            show_default=False,
            help="section, key or part, such as rlax.rollouts, group_size or wandb; default: all "
            "sections",
        ),
    ] = None,
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print the whole of docs/config.md")
    ] = False,
) -> None:
    """Explains the keys of the section rlax: their types, units, defaults and meanings.

    For a key that chooses a part, such as rlax.launcher, the options of the built-in parts are
    shown as well. rlax plugins CONFIG shows the options of other plug-ins' parts.
    """
    with exit_status():
        from rich.console import Console

        from rlax_plugin.commands import reference

        if markdown:
            typer.echo(reference.markdown(), nl=False)
        else:
            reference.show(Console(), reference.find(key or "rlax"))


@command(CONFIGURE, "rlax metrics objective")
def metrics(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            show_default=False,
            help="text in the name or meaning, such as length or time/step_s; default: all metrics",
        ),
    ] = None,
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print the whole of docs/metrics.md")
    ] = False,
) -> None:
    """Lists the metrics that a step can report: name, unit, meaning, and in which steps.

    They are written to the run's metrics.jsonl and sent to its trackers. Angle brackets stand for
    any name, such as the name of a metric that a plug-in reports.
    """
    with exit_status():
        from rich.console import Console
        from rich.table import Table

        from rlax_plugin.errors import ConfigError, alternatives
        from rlax_plugin.metrics import names

        if markdown:
            typer.echo(names.markdown(), nl=False)
            return
        found = names.search(text or "")
        if not found:
            stages = alternatives(text or "", (stage.name for stage in names.STAGES))
            reason = f"no metric has this in its name or meaning; {stages}"
            raise ConfigError("TEXT", text, reason)
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("metric", "unit", "meaning", "when"):
            table.add_column(heading, overflow="fold", no_wrap=heading == "metric")
        for metric in found:
            table.add_row(metric.name, metric.unit, metric.meaning, metric.when)
        Console().print(table)
