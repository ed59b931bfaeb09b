"""Commands for runs over several machines: certificates and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlax_plugin.tools.cli.common import RUNNING, Run, app, command, exit_status

certs = typer.Typer(no_args_is_help=True)
app.add_typer(
    certs,
    name="certs",
    help="Makes certificates for the endpoints of runs, and new tokens of workers.",
    epilog="Example:  rlax certs make certs --name trainer.example.org",
    rich_help_panel=RUNNING,
)


@command(None, "rlax certs make certs --name trainer.example.org --name 10.0.0.7", group=certs)
def make(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="directory of the files; it is made if missing")
    ],
    *,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="host name or IP address by which others reach the server; may be repeated. "
            "Default: the names of the present certificate",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="validity of the server certificate")
    ] = 365,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="also make the secrets of a run over several hosts whose state directory does not "
            "outlive a restart: secrets.json, worker-token.json and host-token.json",
        ),
    ] = False,
) -> None:
    """Makes certificates for the endpoints of runs: an authority, and a server certificate.

    It writes ca.pem, ca-key.pem, server.pem and server-key.pem. Set rlax.network.tls.certificate,
    key and ca to the last two and the first one. Only ca.pem goes to other machines.

    Running it again renews the server certificate with the same authority, and keeps the secrets; a
    run that is going on serves the new one without a restart.

    Runs do not need this: without it, each run makes a certificate of its own, and its workers
    accept no other.
    """
    with exit_status():
        from rlax_plugin.rpc.security.authority import CA, make_certificates
        from rlax_plugin.rpc.security.run_secrets import run_secrets

        made = make_certificates(directory, name or (), days)
        if tokens:
            run_secrets(directory, (directory / CA).read_text()).share("host")
        if made.new_authority:
            typer.echo(f"made a new authority: {directory / 'ca.pem'}")
        names = ", ".join(made.names)
        until = f"{made.until:%Y-%m-%d}"
        typer.echo(f"made {directory / 'server.pem'} for {names}, valid until {until}")
        lines = ("rlax:", "  network:", "    tls:")
        files = {"certificate": "server.pem", "key": "server-key.pem", "ca": "ca.pem"}
        keys = (f"      {key}: {(directory / file).absolute()}" for key, file in files.items())
        typer.echo("\n".join(("", *lines, *keys)))


@command(None, "rlax certs token runs/demo --rotate", group=certs)
def token(
    run: Run,
    *,
    rotate: Annotated[bool, typer.Option("--rotate", help="make a new worker token")] = False,
    old_for: Annotated[
        float,
        typer.Option(
            min=0,
            max=31_536_000,
            help="with --rotate: seconds for which the token before is still accepted",
        ),
    ] = 3600.0,
) -> None:
    """Shows which file lets workers into a run, or replaces the token in it.

    After --rotate, copy the file again to the machines of the workers: the processes there notice
    it by themselves. A running trainer or parameter server accepts the new token within a
    heartbeat, and the one before for the given time. Workers that are members stay members.
    """
    with exit_status():
        from rlax_plugin.base.errors import ConfigError
        from rlax_plugin.base.files.run_files import CONFIG, RunFiles
        from rlax_plugin.base.text.amounts import in_seconds
        from rlax_plugin.config.loading import of_yaml
        from rlax_plugin.rpc.security.run_secrets import known_secrets
        from rlax_plugin.rpc.security.run_secrets import rotate as rotate_secrets
        from rlax_plugin.run.start.run_directory import state_directory

        files = RunFiles(run)
        section = of_yaml(files.config(), files.location(CONFIG)).section
        state_dir = state_directory(section, files)
        if rotate:
            secrets = rotate_secrets(state_dir, old_for)
            kept = f"for {in_seconds(old_for)}" if old_for else "no longer"
            typer.echo(
                f"{secrets.worker_file} has a new token: copy it to the machines of the workers. "
                f"The one before is accepted {kept}"
            )
        elif secrets := known_secrets(state_dir):
            typer.echo(f"workers join with the token in {secrets.worker_file}")
        else:
            reason = f"has no usable secrets in {state_dir}: start the run on this machine first"
            raise ConfigError("RUN", run, reason)
