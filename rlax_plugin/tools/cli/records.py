"""Commands that read what a run has recorded: report, audit, replay."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.tools.cli.common import LOOK, RUN_FAILED, Run, command, exit_status

Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="file to write the page to")]


@command(LOOK, "rlax report runs/demo --watch")
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="directories of runs: paths or URLs such as gs://..."
        ),
    ],
    *,
    out: Out = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="of several runs: those with the same value of this config key are one line, "
            "their mean, with their range",
        ),
    ] = "",
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="write the page again whenever the run has gone on, until it ends"
        ),
    ] = False,
    every_s: Annotated[
        float,
        typer.Option(
            min=0.5,
            metavar="SECONDS",
            help="with --watch: time between two looks at the run's files, after which an open "
            "page also reloads itself",
        ),
    ] = 10.0,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="write only a file of Chrome trace events, for Perfetto or chrome://tracing: who "
            "was busy when",
        ),
    ] = None,
) -> None:
    """Writes one HTML page of a run: figures, charts, and its rollouts token by token.

    Of two or more runs it writes one page that compares them: figures, config differences, and
    overlaid charts. This page is ./compare.html.

    The page of one run is RUN/report.html, or ./NAME-report.html for a run on an object store. It
    needs no other files and no network. If the run is unfinished, the page shows the steps so far.
    With --watch, the page in a browser grows with the run: it reloads itself and stays as it was
    left.
    """
    with exit_status():
        if len(runs) > 1:
            from rlax_plugin.tools.commands.report.write import write_comparison

            if watch or trace is not None:
                reason = "is for one run: leave out --watch and --trace, or the other runs"
                raise ConfigError("RUN...", " ".join(runs), reason)
            typer.echo(write_comparison(runs, out, by))
            return
        run = runs[0]
        if by:
            raise ConfigError("--by", by, "is for several runs")
        if trace is not None:
            from rlax_plugin.tools.commands.report.write import write_trace

            if watch or out is not None:
                reason = "writes no page: --watch and --out are for the page, so leave them out"
                raise ConfigError("--trace", trace, reason)
            typer.echo(write_trace(run, trace))
            return
        if watch:
            from rlax_plugin.base.text.terminal import HarmlessConsole
            from rlax_plugin.tools.commands.report.watch import watch_report

            try:
                typer.echo(watch_report(run, out, every_s, HarmlessConsole(stderr=True)))
            except KeyboardInterrupt:
                typer.echo("stopped watching; the page remains and does not reload any more")
                raise
            return
        from rlax_plugin.tools.commands.report.write import write_report

        typer.echo(write_report(run, out))


@command(LOOK, "rlax audit runs/demo")
def audit(
    run: Run,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Checks the records of a run: no prompt was lost, trained twice or too stale.

    Every issued group must be trained, rejected, dropped or still open, exactly once; every trained
    token must be within the staleness bound; every batch on disk must be the one that trained. If
    not, the first violation is reported, and the exit status is 1. The run is not changed and may
    be training.
    """
    with exit_status():
        from rlax_plugin.base.files.run_files import RunFiles
        from rlax_plugin.tools.commands.audit.show import audit_with_progress, print_report

        report = audit_with_progress(RunFiles(run))
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        from rlax_plugin.base.text.terminal import HarmlessConsole

        print_report(HarmlessConsole(), report)
    raise typer.Exit(0 if report.clean else RUN_FAILED)


@command(LOOK, "rlax replay runs/demo --to 5")
def replay(
    run: Run,
    *,
    to: Annotated[
        int | None, typer.Option(min=1, help="last step to replay; default: the last recorded one")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="local directory for the replay's files, which is emptied first; default: "
            "RUN/replay, or ./replay-NAME for a run on an object store"
        ),
    ] = None,
) -> None:
    """Trains again on the recorded batches of a run, and compares the weights.

    Only the trainer runs, without workers or generation. The fingerprints of every weight version
    are compared with those of the run; on CPU they are bit-identical. The exit status is 0 if all
    are equal, and 1 otherwise. Several hosts add up numbers in another order than this replay.
    """
    with exit_status():
        from rlax_plugin.tools.commands.replay import replay as run_again

        raise typer.Exit(run_again(run, to, out))
