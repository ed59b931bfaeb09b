"""Commands that run processes: train, serve, parameter-server."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.tools.cli.common import (
    RUNNING,
    Config,
    Overrides,
    command,
    ending_at_once,
    exit_status,
    first_words,
)


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
            help="start from the weights of another run: its directory and, optionally, the RL "
            "step of a checkpoint; default: the newest checkpoint",
        ),
    ] = None,
    hosts: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="number of hosts of the trainer. With hardware=cpu and without --host, all of "
            "them are started here, as processes that share the devices of the config",
        ),
    ] = None,
    host: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="with --hosts: this is the host of this number; 0 has the run directory and the "
            "controller. Start each host with the same config and arguments",
        ),
    ] = None,
    coordinator: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="with --host: address at which host 0 lets the others find each other "
            "(jax.distributed)",
        ),
    ] = "",
    controller: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="with --host from 1: address of host 0's controller; default: found by itself if "
            "host 0 runs on this machine",
        ),
    ] = "",
    token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="with --host from 1: the run's host-token.json, which lets this host in; default: "
            "that in the run's state directory",
        ),
    ] = "",
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="stop when the parent process ends", hidden=True)
    ] = False,
) -> None:
    """Trains a model, or continues an interrupted run.

    It runs MaxText's own training loop, and the config's launcher starts the rollout workers. All
    files are written below base_output_directory/run_name. The same command continues an
    interrupted run. Ctrl-C stops after the current step and writes a checkpoint; a second Ctrl-C
    stops at once.

    The config of a run cannot be changed after its start. Instead, rlax train CONFIG run_name=NEW
    --from RUN starts a new run from the weights of another run, with any config of the same model.
    The new run begins with step 1, a new optimizer state and the first prompts.

    A model that needs several hosts is trained by one process on each of them. --hosts 2 starts two
    here, on the processor, to try a config. Elsewhere start rlax train CONFIG --hosts N --host I
    --coordinator HOST:PORT on each host; docs/operate.md shows it.
    """
    first_words(f"rlax train {config}")
    from rlax_plugin.run.start.places import Places

    places = Places(hosts, host, coordinator, controller, token_file)
    with ending_at_once(host), exit_status():
        if with_parent:
            places.end_with_parent()
        raise typer.Exit(places.train(config, overrides or (), start))


@command(RUNNING, "rlax serve --controller 127.0.0.1:4711 rlax.rollouts.slots=4")
def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [KEY=VALUE...]",
            help="directory of a run whose weights are served to other programs; with "
            "--controller not needed. Then keys to override: with RUN any, with --controller "
            "those that are local to a worker",
        ),
    ] = None,
    *,
    host: Annotated[
        str | None,
        typer.Option(
            help="address of this machine to listen on. Default: with --controller a loopback "
            "address if the controller is on this machine, otherwise the address from which this "
            "machine reaches it; with RUN rlax.network.host"
        ),
    ] = None,
    advertised_host: Annotated[
        str,
        typer.Option(help="name or address by which others reach this process; default: --host"),
    ] = "",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="port to listen on; 0, the default: any free port"),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="with RUN: port of OpenAI's API over HTTP, which beyond loopback needs "
            "rlax.network.tls; default: any free port",
        ),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=0, help="with RUN: weight version; default: the newest available"),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(help="host:port on which a running trainer listens, to generate for it"),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="with --controller: the run's worker-token.json, which lets this worker in; "
            "default: found by itself if the same user's trainer runs on this machine. With RUN: "
            "where the token of clients is written; default: below ~/.local/state/rlax/tokens",
        ),
    ] = None,
    ca: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="with --controller: certificate (PEM) of the authority that verifies the run's "
            "endpoints, if the run has rlax.network.tls; default: as the token file says",
        ),
    ] = "",
    open_to_all: Annotated[
        bool,
        typer.Option(
            "--open",
            help="with RUN: answer clients without a token, such as stock JetStream clients, "
            "which send none; every user of this machine can call then",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            help="with --controller: name of this worker, unique among the run's workers; "
            "default: made of host name and process id"
        ),
    ] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="end when the parent process ends")
    ] = False,
    incarnation: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**63 - 1,
            help="with --controller: number of this start of the worker --name, given by a "
            "launcher that may start it again elsewhere; the run uses only the process with the "
            "highest number, and the others end",
        ),
    ] = None,
    prometheus_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="port of a page /metrics for Prometheus; 0: any free port"
        ),
    ] = None,
    prometheus_token_file: Annotated[
        Path | None,
        typer.Option(
            help="file with the token that a scrape must send; default: every local user can read "
            "the page"
        ),
    ] = None,
) -> None:
    """Serves the weights of a run to other programs, or generates rollouts for a running trainer.

    rlax serve RUN answers requests to OpenAI's API over HTTP, and to the rollout engine's own
    service, with the newest weights that the run keeps, and with the run's settings; KEY=VALUE
    arguments change them, such as rlax.rollouts.temperature=0. Clients need its token file, which
    only your user can read. After SIGTERM it finishes its open requests and ends.

    rlax serve --controller HOST:PORT adds a worker to a running trainer. It needs neither the run's
    directory nor its config: the trainer sends the config. The worker loads the current weights and
    generates until the run ends. Workers may join and leave at any time.

    The controller must reach the worker: on another machine it listens on the address from which
    that machine reaches the controller, or on --host. With --advertised-host, the controller
    connects to that name or address instead.

    With --controller, KEY=VALUE arguments set what is local to this worker: rlax.rollouts.slots,
    rlax.rollouts.engine, rlax.deadlines, rlax.network, rlax.plugins, rlax.weights.transfer and
    stream_dir, and MaxText's hardware, ici_* and dcn_* keys. Another key must have the run's value.
    A worker that lacks what the run needs is rejected with the reason.

    A worker on a machine that does not see the directory of the weights needs
    rlax.weights.transfer=stream.
    """
    with exit_status():
        what, overrides = _what_and_overrides(arguments or [], controller)
        token = _prometheus_token(prometheus_token_file, prometheus_port)
        if controller is None:
            from rlax_plugin.run.programs.standalone import serve_run

            if what is None:
                raise ConfigError("RUN", None, "must be given, or --controller HOST:PORT")
            only = {"--name": name, "--with-parent": with_parent or None}
            only |= {"--ca": ca or None, "--incarnation": incarnation}
            _reject_without_controller(only)
            if open_to_all and token_file is not None:
                raise ConfigError("--token-file", token_file, "cannot be used with --open")
            serve_run(
                what,
                overrides,
                host=host,
                advertised_host=advertised_host,
                port=port or 0,
                http_port=http_port,
                version=version,
                prometheus_port=prometheus_port,
                open_to_all=open_to_all,
                token_file=None if token_file is None else Path(token_file),
                prometheus_token=token,
                ready=typer.echo,
            )
            return
        from rlax_plugin.run.programs.serve import serve as run

        _check_address("--controller", controller)
        only_with_run = {"--version": version, "--open": open_to_all, "--http-port": http_port}
        for option, value in only_with_run.items():
            if value is not None and value is not False:
                reason = "cannot be used with --controller, only with the directory of a run"
                raise ConfigError(option, value, reason)
        run(
            overrides,
            controller=controller,
            token_file=token_file,
            name=_default_name() if name is None else name,
            with_parent=with_parent,
            host=host or "",
            advertised_host=advertised_host,
            port=port or 0,
            ca=ca,
            incarnation=incarnation or 0,
            prometheus_port=prometheus_port,
            prometheus_token=token,
        )


def _what_and_overrides(words: list[str], controller: str | None) -> tuple[str | None, list[str]]:
    """Returns the run, if one is given, and the arguments that follow it."""
    return (words[0], words[1:]) if words and controller is None else (None, words)


def _prometheus_token(path: Path | None, port: int | None) -> str:
    from rlax_plugin.rpc.security.token_file import read_token

    if path is None:
        return ""
    if port is None:
        reason = "can only be used with --prometheus-port"
        raise ConfigError("--prometheus-token-file", str(path), reason)
    return read_token("--prometheus-token-file", path)


def _default_name() -> str:
    """Returns a worker name that no other running worker has."""
    return f"{socket.gethostname()}-{os.getpid()}"


@command(RUNNING, "rlax parameter-server configs/demo.yml --port 9100", name="parameter-server")
def parameter_server(
    config: Config,
    overrides: Overrides = None,
    *,
    host: Annotated[
        str, typer.Option(help="address of this machine to listen on; 0.0.0.0 or ::: all of them")
    ] = "127.0.0.1",
    advertised_host: Annotated[
        str,
        typer.Option(help="name or address by which trainer and workers reach it; default: --host"),
    ] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port to listen on; 0: any free port")
    ] = 0,
    index: Annotated[
        Path | None,
        typer.Option(help="file that lists the versions, so a restarted server still knows them"),
    ] = None,
) -> None:
    """Runs the parameter server, which tells workers of weight versions, in a separate process.

    By default, the trainer runs the parameter server. A separate one is needed only if it must stay
    up while the trainer is restarted. Runs use it with rlax.weights.parameter_server=HOST:PORT. It
    takes versions only from the run that the config and the arguments describe.
    """
    with exit_status():
        import asyncio

        from rlax_plugin.base.files.places import check_file_writable
        from rlax_plugin.base.files.private import check_private
        from rlax_plugin.base.files.run_files import RunFiles
        from rlax_plugin.base.liveness.watchdog import watched
        from rlax_plugin.build import build_weight_store
        from rlax_plugin.config.loading import load_section
        from rlax_plugin.config.network import Place
        from rlax_plugin.ports.protocols import BuildContext
        from rlax_plugin.rpc.security.operator_certificate import authority_of, served_identity
        from rlax_plugin.rpc.security.run_secrets import Upkeep, run_secrets
        from rlax_plugin.rpc.transport.doors import Door
        from rlax_plugin.run.start.run_directory import (
            make_directories,
            run_directory,
            state_directory,
            weights_directory,
        )
        from rlax_plugin.weights.parameter_server import serve_parameter_server

        section, maxtext = load_section(config, overrides or ())
        place = Place(host, advertised_host)
        place.check("--host", "--advertised-host")
        if index is not None:
            check_file_writable("--index", str(index), section.deadlines.rpc_s)
            check_private("--index", str(index), index.absolute().parent)
        context, files = BuildContext.outside_run(section), RunFiles(run_directory(maxtext))
        state_dir = state_directory(section, files)
        make_directories(files, state_dir, section, maxtext)
        tls, beat_s = section.network.tls, section.deadlines.heartbeat_s
        secrets = run_secrets(state_dir, authority_of(tls))
        callers = secrets.callers()
        identity = served_identity(tls, secrets.identity, place.reached_at)
        upkeep = Upkeep(secrets, callers, identity, note=typer.echo)
        asyncio.run(
            serve_parameter_server(
                host,
                port,
                Door(callers, identity),
                build_weight_store(context),
                keep=section.weights.keep,
                lease_s=section.deadlines.lease_s,
                ready=lambda address: typer.echo(f"parameter server listens on {address}"),
                published_in=weights_directory(section, files),
                index=index,
                advertised=advertised_host,
                beside=lambda: watched(state_dir, "parameter server", upkeep.run(beat_s)),
                streams=section.weights.streams,
            )
        )


def _check_address(key: str, address: str) -> None:
    from rlax_plugin.config import is_address

    if not is_address(address):
        raise ConfigError(key, address, "must be host:port")


def _reject_without_controller(only: Mapping[str, object]) -> None:
    for option, value in only.items():
        if value is not None:
            raise ConfigError(option, value, "can only be used with --controller")
