"""Commands that look at a run while it goes on, or shake it: status, doctor, chaos."""

from __future__ import annotations

import enum
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from rlax_plugin.cli.common import (
    LOOK,
    RUN_FAILED,
    AsJson,
    Config,
    Overrides,
    Run,
    command,
    exit_status,
)


@command(LOOK, "rlax status runs/demo")
def status(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            show_default=False,
            help="directory of a run on this machine; not needed with --controller",
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
        from rlax_plugin.commands.status.command import show_status, source, to_json

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
        bool,
        typer.Option("--stacks", help="print the whole stacks of all processes of the run"),
    ] = False,
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="also write all evidence to this new .tar.gz file: status, stacks, ends of logs, "
            "and the config without values that may be secrets",
        ),
    ] = None,
    with_texts: Annotated[
        bool,
        typer.Option(
            "--with-texts",
            help="with --bundle: also the log of rewards, which may hold prompts and answers",
        ),
    ] = False,
) -> None:
    """Finds what of a run on this machine is stuck or slow, and says what to try.

    It looks at the run's processes, status, disks, memory and clocks, and asks the processes
    concerned for the stacks of their threads. Each finding says since when, which deadline will end
    it, and what to try. If the trainer has ended, it is a post mortem. The exit status is 0 if
    there is no finding, 1 if there is one, and 2 if there is no such run. The run is not changed.
    """
    with exit_status():
        from rlax_plugin.commands.doctor.command import examine

        healthy = examine(run, all_stacks=stacks, bundle=bundle, with_texts=with_texts)
    raise typer.Exit(0 if healthy else RUN_FAILED)


@contextmanager
def _empty_removed(folder: Path) -> Iterator[None]:
    """Removes a folder in which nothing was written in the end."""
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()


class _Fault(enum.Enum):
    network = "network"
    disk = "disk"
    clock = "clock"
    store = "store"


@command(LOOK, "rlax chaos configs/demo.yml steps=20 --seed 1 --kills 4")
def chaos(
    config: Config,
    overrides: Overrides = None,
    *,
    seed: Annotated[int, typer.Option(min=0, help="seed of the first run")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="number of runs, with consecutive seeds")
    ] = 1,
    kills: Annotated[
        int,
        typer.Option(min=1, max=1000, help="number of blows of a run: kills, freezes and faults"),
    ] = 8,
    parameter_server: Annotated[
        bool,
        typer.Option("--parameter-server", help="run the parameter server as a separate process"),
    ] = False,
    spare_trainer: Annotated[
        bool, typer.Option("--spare-trainer", help="never kill or freeze the trainer")
    ] = False,
    fault: Annotated[
        list[_Fault] | None,
        typer.Option(
            show_default=False,
            help="also lets this fail; may be given several times. network: delays, stalls, resets "
            "and half-open connections of a worker of its own, and of a separate parameter server. "
            "disk: the file system of base_output_directory, which must be a small one, is full "
            "for some seconds. clock: clocks that are 90 s off, with the library libfaketime. "
            "store: the weight store is slow, fails now and then, or hangs",
        ),
    ] = None,
    hosts: Annotated[
        int, typer.Option(min=1, max=64, help="number of the trainer's hosts, for MaxText on cpu")
    ] = 1,
    ray_nodes: Annotated[
        int,
        typer.Option(
            min=0,
            max=64,
            help="run the workers on this number of nodes of a Ray cluster that is started on this "
            "machine, and kill, freeze and drain these nodes as well; 0: no Ray cluster",
        ),
    ] = 0,
    within_s: Annotated[
        float, typer.Option(min=1, help="seconds in which each run must end after its last blow")
    ] = 600.0,
    patience_s: Annotated[
        float, typer.Option(min=0.1, help="seconds to wait for the event of a blow")
    ] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(
            show_default=False,
            help="folder for the output of the processes; default: a new one below the system's "
            "temporary directory",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Trains a config while its processes are killed and frozen, and checks that the run survives.

    For each seed it trains a new run, named chaos-SEED. A seed decides which processes (trainer,
    workers, reward processes, and with --parameter-server that server) get SIGKILL or SIGSTOP, and
    at which events: in a commit, in a publication, in a snapshot, at a restore, between turns, in
    an evaluation. --fault adds faults of the network, the disk, the clocks and the weight store,
    and --ray-nodes lost, frozen and drained nodes of a Ray cluster. What a supervisor
    would start again, it starts again. Then the run must be complete, rlax audit must find nothing,
    no process may be left over, and with rlax.deterministic the weights must be those of an
    undisturbed run, bit for bit. The exit status is 0 if all runs have survived, and 1 otherwise.
    Each failure comes with the command that repeats it.
    """
    folder = out or Path(tempfile.mkdtemp(prefix="rlax-chaos-"))
    with exit_status(), nullcontext() if out else _empty_removed(folder):
        from rlax_plugin.commands.chaos.command import chaos as run_chaos
        from rlax_plugin.commands.chaos.prepare import Settings

        settings = Settings(
            config=config,
            overrides=tuple(overrides or ()),
            kills=kills,
            within_s=within_s,
            patience_s=patience_s,
            own_server=parameter_server,
            trainer=not spare_trainer,
            faults=tuple(dict.fromkeys(one.value for one in fault or ())),
            hosts=hosts,
            ray_nodes=ray_nodes,
            out=folder,
        )
        survived = run_chaos(settings, range(seed, seed + seeds), as_json=as_json)
    raise typer.Exit(0 if survived else RUN_FAILED)
