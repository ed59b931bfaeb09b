"""The command that predicts the time of a step: plan."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rlax_plugin.cli.common import CONFIGURE, AsJson, Config, Overrides, command, exit_status


@command(CONFIGURE, "rlax plan configs/demo.yml --workers 2")
def plan(
    config: Config,
    overrides: Overrides = None,
    *,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="most workers; default: one for each CPU core, or as many as the config has",
        ),
    ] = None,
    staleness: Annotated[
        list[str] | None,
        typer.Option(
            metavar="J,K",
            show_default=False,
            help="a pair of rlax.staleness to consider besides that of the config, such as 1,2; "
            "may be repeated. Default: 1,1 and 1,2, if the objective allows them",
        ),
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(show_default=False, help="memory for all processes; default: the machine's"),
    ] = None,
    steps: Annotated[int, typer.Option(help="steps of each measured run")] = 24,
    out: Annotated[
        str | None,
        typer.Option(
            show_default=False, help="folder for the measured runs; default: the run's, with -plan"
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="number of arrangements to show")] = 10,
    as_json: AsJson = False,
) -> None:
    """Predicts the time of a step with other numbers of workers, slots and micro-batches.

    It runs the config up to four times for some steps, each time in another arrangement, and fits a
    model of the time of a step to what it has measured: generation, training, and the CPU cores
    that both share. Then it ranks arrangements with up to twice the slots and four times the
    micro-batches, and prints the arguments of the fastest. Only rlax.staleness changes what a run
    learns.

    It needs the launcher local. The measured runs are kept, so that a second plan is made at once,
    and the same command continues an interrupted one.
    """
    with exit_status():
        from rich.console import Console

        from rlax_plugin.commands.plan import show
        from rlax_plugin.commands.plan.command import Wishes, make
        from rlax_plugin.text.terminal import console as harmless
        from rlax_plugin.text.terminal import counting

        with counting(harmless(sys.stderr)) as tell:
            wishes = Wishes(workers, staleness, memory_gib, steps, out, tell)
            found = make(config, overrides or (), wishes)
        if as_json:
            typer.echo(json.dumps(show.document(found), indent=2))
            return
        console = Console()
        console = console if console.is_terminal else Console(width=110)
        console.print(show.table(found, top))
        for sentence in show.sentences(found):
            typer.echo(sentence)
