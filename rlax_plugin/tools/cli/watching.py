"""Commands that look at a run while it goes on: status and doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from rlax_plugin.tools.cli.common import LOOK, RUN_FAILED, AsJson, Run, command, exit_status


@command(LOOK, "rlax status runs/demo")
def status(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="directory of a run on this machine; not needed with --controller"
        ),
    ] = None,
    *,
    controller: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="ask this controller instead, for a run on another machine; rlax train has "
            "printed its address",
        ),
    ] = "",
    token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="with --controller: client-token.json of the run, from its state directory on "
            "the trainer's machine",
        ),
    ] = "",
    once: Annotated[
        bool, typer.Option("--once", help="print it once, instead of until Ctrl-C")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Shows what a run does now, how fast, and what it waits for.

    The phase and for how long, pace and time left, the time of a step by phase, each worker with
    its version, slots in use, tokens per second and last heartbeat, and the bottleneck in a
    sentence. On a terminal it is refreshed every second until Ctrl-C; elsewhere, or with --once, it
    is printed once. The exit status is 0 while the run goes on; 1 if the trainer's process has
    ended or is frozen, or its status cannot be read or got; and 2 if there is no such run.
    """
    with exit_status():
        from rlax_plugin.tools.commands.status.command import show_status, source, to_json

        look = source(run, controller, token_file)
        if as_json:
            seen = look()
            typer.echo(to_json(seen))
            goes_on = seen.goes_on
        else:
            goes_on = show_status(look, once=once)
    raise typer.Exit(0 if goes_on else RUN_FAILED)


@command(LOOK, "rlax doctor runs/demo")
def doctor(
    run: Run,
    *,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="print the whole stacks of all processes of the run")
    ] = False,
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="also write all evidence to this new .tar.gz file: status, stacks, ends of logs, "
            "and the config without values that may be secrets",
        ),
    ] = None,
) -> None:
    """Finds what of a run on this machine is stuck or slow, and says what to try.

    It looks at the run's processes, status, disks, memory and clocks, and asks the processes
    concerned for the stacks of their threads. Each finding says since when, which deadline will end
    it, and what to try. If the trainer has ended, it is a post mortem. The exit status is 0 if
    there is no finding, 1 if there is one, and 2 if there is no such run. The run is not changed.
    """
    with exit_status():
        from rlax_plugin.tools.commands.doctor.command import examine

        healthy = examine(run, all_stacks=stacks, bundle=bundle)
    raise typer.Exit(0 if healthy else RUN_FAILED)
