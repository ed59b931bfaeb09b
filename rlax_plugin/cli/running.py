"""Commands that run processes: train, serve, parameter-server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlax_plugin.cli.common import RUNNING, Config, Overrides, command, exit_status
from rlax_plugin.errors import ConfigError


@command(RUNNING, "rlax train configs/demo.yml run_name=mine rlax.seed=1")
def train(
    config: Config,
    overrides: Overrides = None,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[@STEP]",
            help="start from another run's weights: its directory and, optionally, the RL step of "
            "a checkpoint (default: the newest)",
        ),
    ] = None,
) -> None:
    """Trains, or continues a run that was interrupted.

    Runs MaxText's own training loop; the config's launcher starts the rollout workers. Everything
    is written below base_output_directory/run_name. The same command continues an interrupted run.
    Ctrl-C stops after the current step, with a checkpoint; a second one stops at once.

    A run cannot change its config once it has begun. rlax train CONFIG run_name=NEW --from RUN
    starts a new run from another run's weights instead, with any config of the same model: its
    step count, optimizer state and prompts begin anew.
    """
    with exit_status():
        from rlax_plugin.controller.run import train as run

        status = run(config, overrides or (), start)
    raise typer.Exit(status)


@command(RUNNING, "rlax serve runs/demo --port 9000")
def serve(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CONFIG",
            help="directory of a run, to serve its weights to other programs; or, with "
            "--controller, the config of a running trainer",
        ),
    ],
    overrides: Overrides = None,
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="with RUN: port to listen on; 0, the default, takes any free one"
        ),
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="with RUN: weight version; default: the newest kept")
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(help="with CONFIG: host:port that the running trainer listens on"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="with CONFIG: unique among the workers of the run")
    ] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="end when the process that started this one ends")
    ] = False,
    prometheus_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="of a page /metrics for Prometheus; 0 takes any free one"
        ),
    ] = None,
) -> None:
    """Serves a trained run to other programs, or rollouts to a running trainer.

    rlax serve RUN answers requests to its rollout engine's own service, with the newest weights
    that the run has kept, under the run's own settings, which KEY=VALUE arguments change:
    rlax.rollouts.temperature=0. SIGTERM lets it finish what it is generating.

    rlax serve CONFIG --controller HOST:PORT --name NAME is one more worker of a running trainer.
    It registers itself, pulls the current weights, and generates until the run ends. It may come
    and go at any time. Give it the config and the arguments that the trainer was given.
    """
    with exit_status():
        if controller is None:
            from rlax_plugin.worker.standalone import serve_run

            _reject_without_controller(what, name, with_parent)
            serve_run(
                what,
                overrides or (),
                port=port or 0,
                version=version,
                prometheus_port=prometheus_port,
                ready=typer.echo,
            )
            return
        from rlax_plugin.worker.serve import serve as run

        _check_address("--controller", controller)
        for option, value in (("--port", port), ("--version", version)):
            if value is not None:
                raise ConfigError(option, value, "goes with a run's directory, not --controller")
        if name is None:
            raise ConfigError("--name", None, "is needed with --controller")
        run(
            what,
            overrides or (),
            controller=controller,
            name=name,
            with_parent=with_parent,
            prometheus_port=prometheus_port,
        )


@command(RUNNING, "rlax parameter-server configs/demo.yml --port 9100", name="parameter-server")
def parameter_server(
    config: Config,
    overrides: Overrides = None,
    *,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port")] = 0,
    index: Annotated[
        Path | None,
        typer.Option(help="file that remembers the versions, for a server that is started again"),
    ] = None,
) -> None:
    """Serves weight versions in a process of its own.

    Needed only where versions must outlive the trainer: by default the trainer holds the
    parameter server. Let the run use it with rlax.weights.parameter_server=HOST:PORT.
    """
    with exit_status():
        import asyncio

        from rlax_plugin.build import build_weight_store
        from rlax_plugin.config import Network
        from rlax_plugin.config.loading import load_section
        from rlax_plugin.ports.protocols import BuildContext
        from rlax_plugin.records.places import check_file_writable
        from rlax_plugin.weights.service import serve_parameter_server

        section, _ = load_section(config, overrides or ())
        Network(host=host, port=port)  # rejects what the config would reject
        if index is not None:
            check_file_writable("--index", str(index), section.deadlines.rpc_s)
        context = BuildContext.outside_run(section)
        asyncio.run(
            serve_parameter_server(
                host,
                port,
                build_weight_store(context),
                keep=section.weights.keep,
                lease_s=section.deadlines.lease_s,
                ready=lambda address: typer.echo(f"parameter server listens on {address}"),
                index=index,
            )
        )


def _check_address(key: str, address: str) -> None:
    from rlax_plugin.config import is_address

    if not is_address(address):
        raise ConfigError(key, address, "must be host:port")


def _reject_without_controller(what: str, name: str | None, with_parent: bool) -> None:
    if what.endswith(".yml"):
        reason = "is needed with a config; to serve a trained run, give its directory instead"
        raise ConfigError("--controller", None, reason)
    for option, value in (("--name", name), ("--with-parent", with_parent or None)):
        if value is not None:
            raise ConfigError(option, value, "goes with --controller")
