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
            help="a section, key or part, such as rlax.rollouts, group_size or wandb; default: all",
        ),
    ] = None,
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print docs/config.md, whole")
    ] = False,
) -> None:
    """Explains the keys of the section rlax: their types, units, defaults and meanings.

    Where a key chooses a part, such as rlax.launcher, the options of the built-in parts are shown
    as well; those of other plug-ins are shown by rlax plugins CONFIG.
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
            help="in the name or the meaning, such as length or time/step_s; default: all of them",
        ),
    ] = None,
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print docs/metrics.md, whole")
    ] = False,
) -> None:
    """Lists the metrics that a step can report: name, unit, meaning, and when it is there.

    They are in the run's metrics.jsonl and go to its trackers. What stands in angle brackets is any
    name, such as those that plug-ins report.
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
