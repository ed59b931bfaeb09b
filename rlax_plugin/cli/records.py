"""Commands that read what a run has recorded: report, compare, audit, replay."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rlax_plugin.cli.common import LOOK, RUN_FAILED, Run, command, exit_status

Out = Annotated[
    str | None, typer.Option("--out", metavar="FILE", show_default=False, help="the page's file")
]


@command(LOOK, "rlax report runs/demo")
def report(run: Run, *, out: Out = None) -> None:
    """Writes one HTML page of a run: figures, charts, and its rollouts token by token.

    The page is RUN/report.html, or ./NAME-report.html for a run on an object store. It holds all it
    needs and opens without a network. A run that goes on or was killed is shown as far as it came.
    """
    with exit_status():
        from rlax_plugin.commands.report.write import write_report

        typer.echo(write_report(run, out))


@command(LOOK, "rlax compare runs/a runs/b --out compare.html")
def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN RUN...", help="directories of two runs or more")
    ],
    *,
    out: Out = None,
) -> None:
    """Writes one HTML page that overlays runs: figures, what differs in their configs, charts.

    The page is ./compare.html.
    """
    with exit_status():
        from rlax_plugin.commands.report.write import write_comparison

        typer.echo(write_comparison(runs, out))


@command(LOOK, "rlax audit runs/demo")
def audit(
    run: Run,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Proves from a run's records that no prompt was lost, none trained twice, none too stale.

    Every group that was issued must have ended in exactly one way, every trained token must lie
    within the staleness bound, and every batch must be on disk as it was trained. Otherwise the
    first violation is named, and the exit status is 1. Nothing is changed; the run may go on.
    """
    with exit_status():
        from rlax_plugin.commands.audit.show import audit_with_progress, print_report
        from rlax_plugin.records.files import RunFiles

        report = audit_with_progress(RunFiles(run))
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        from rlax_plugin.text.terminal import HarmlessConsole

        print_report(HarmlessConsole(), report)
    raise typer.Exit(0 if report.clean else RUN_FAILED)


@command(LOOK, "rlax replay runs/demo --to 5")
def replay(
    run: Run,
    *,
    to: Annotated[
        int | None, typer.Option(min=1, show_default=False, help="last step; default: all recorded")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="local directory of the replay's own files, emptied first; default: RUN/replay, "
            "or ./replay-NAME for a run on an object store",
        ),
    ] = None,
) -> None:
    """Runs the trainer alone on a run's recorded batches, and compares the weights.

    No worker is started and nothing is generated. The fingerprints of every weight version are
    compared with those of the run; on CPU they are bit-identical. The exit status is 0 if they are
    equal, and 1 if not.
    """
    with exit_status():
        from rlax_plugin.commands.replay import replay as run_again

        status = run_again(run, to, out)
    raise typer.Exit(status)
