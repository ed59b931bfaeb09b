"""Commands that teach the config and algorithms: config, objective, metrics."""

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


@command(CONFIGURE, "rlax objective dapo rlax.objective.entropy_coefficient=0.01")
def objective(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="name of a preset, or a config (.yml) whose objective is explained; default: list "
            "all presets",
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE...]",
            show_default=False,
            help="a config whose plug-ins are loaded; then keys below rlax.objective, such as "
            "rlax.objective.kl.coefficient=0.04",
        ),
    ] = None,
    *,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            show_default=False,
            help="module to load although it is not installed as a plug-in; may be repeated",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print the tables of docs/objectives.md")
    ] = False,
) -> None:
    """Explains an objective: formula, paper, parts, options, and one update in numbers.

    An objective is one sum with five slots: aggregation, importance weight, advantage, grad_1 and
    grad_2. A preset fills the slots. A config can replace each of them, and add corrections, KL to
    a reference policy or an entropy bonus. The numbers are those that rlax train would compute.

    The worked example has four samples of one prompt, with rewards 1, 0, 0 and 1. It shows the
    advantage of each sample, and for each token its ratios, its weight and the gradient of the
    loss.
    """
    with exit_status():
        from rich.console import Console

        from rlax_plugin.build import registry_for
        from rlax_plugin.commands import explain

        section = explain.section_for(name or "", arguments or (), plugin or ())
        if markdown:
            typer.echo(explain.markdown(registry_for(section)), nl=False)
        elif name is None:
            explain.list_presets(Console(), registry_for(section))
        else:
            explain.show_preset(Console(), section)


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
