"""The command line. Each command imports what it needs when it runs, so that help is instant.

Exit status: 0 done, 1 the run failed or does not hold what was to be proved, 2 the config or a
plug-in is wrong, 130 interrupted.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from rlax_plugin.errors import ConfigError, PluginError, RlaxError

F = TypeVar("F", bound=Callable[..., Any])

RUN_FAILED, BAD_CONFIG, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="rlax",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reinforcement learning for language models on MaxText, as plug-ins.\n\n"
    "A run is described by one MaxText config with a section [bold]rlax:[/bold] in it. Any key of "
    "it, MaxText's or [bold]rlax.*[/bold], can be given again after the config as key=value.",
    epilog="Start with:  rlax check configs/demo.yml  then  rlax train configs/demo.yml",
)

Config = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="MaxText config (.yml) with a section rlax:"),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE...",
        show_default=False,
        help="keys to set, such as steps=10 or rlax.rollouts.group_size=4; values are YAML",
    ),
]

Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="directory of a run: a path, or a URL such as gs://..."),
]


def _command(example: str, name: str | None = None) -> Callable[[F], F]:
    """Registers a command; its docstring, paragraph by paragraph, becomes the help."""

    def register(function: F) -> F:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        return app.command(name, help=text, epilog=f"Example:  {example}")(function)

    return register


@contextmanager
def _exit_status() -> Iterator[None]:
    """Turns what went wrong into one message and an exit status."""
    try:
        yield
    except (ConfigError, PluginError) as error:
        _print_error(error)
        raise typer.Exit(BAD_CONFIG) from error
    except RlaxError as error:
        _print_error(error)
        raise typer.Exit(RUN_FAILED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error


def _print_error(error: RlaxError) -> None:
    from rich.console import Console
    from rich.text import Text

    message = Text.assemble(("error: ", "bold red"), str(error))
    Console(stderr=True).print(message, soft_wrap=True)


@_command("rlax train configs/demo.yml run_name=mine rlax.seed=1")
def train(config: Config, overrides: Overrides = None) -> None:
    """Trains, or continues a run that was interrupted.

    Runs MaxText's own training loop; the config's launcher starts the rollout workers. Everything
    is written below base_output_directory/run_name. The same command continues an interrupted run.
    Ctrl-C stops after the current step, with a checkpoint; a second one stops at once.
    """
    with _exit_status():
        from rlax_plugin.controller.run import train as run

        status = run(config, overrides or ())
    raise typer.Exit(status)


@_command("rlax serve configs/demo.yml --controller 127.0.0.1:9000 --name worker-0")
def serve(
    config: Config,
    overrides: Overrides = None,
    *,
    controller: Annotated[str, typer.Option(help="host:port that the running trainer listens on")],
    name: Annotated[str, typer.Option(help="unique among the workers of the run")],
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="end when the process that started this one ends")
    ] = False,
) -> None:
    """Serves rollouts to a running trainer, as one more worker.

    The worker registers itself, pulls the current weights, and generates until the run ends. It
    may come and go at any time; SIGTERM lets it finish what it is generating. Give it the config
    and the arguments that the trainer was given.
    """
    with _exit_status():
        from rlax_plugin.worker.serve import serve as run

        _check_address("--controller", controller)
        run(config, overrides or (), controller=controller, name=name, with_parent=with_parent)


@_command("rlax parameter-server configs/demo.yml --port 9100", name="parameter-server")
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
    with _exit_status():
        import asyncio

        from rlax_plugin.build import build_weight_store
        from rlax_plugin.config import Network
        from rlax_plugin.loading import load_section
        from rlax_plugin.parameter_server import serve_parameter_server
        from rlax_plugin.protocols import BuildContext

        section, _ = load_section(config, overrides or ())
        Network(host=host, port=port)  # refuses what the config would refuse
        context = BuildContext(run_dir=Path(), seed=section.seed, section=section)
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


@_command("rlax check configs/demo.yml rlax.staleness.max_staleness=2")
def check(
    config: Config,
    overrides: Overrides = None,
    *,
    fast: Annotated[
        bool, typer.Option("--fast", help="only the section rlax: and the plug-ins, in a second")
    ] = False,
) -> None:
    """Finds errors in a config without starting anything or touching a device.

    First the section rlax: and its plug-ins are checked, without importing MaxText; then the
    parts check what is theirs, above all MaxText its own keys.
    """
    with _exit_status():
        from rlax_plugin import advantages, objective
        from rlax_plugin.build import registry_for
        from rlax_plugin.loading import load_section
        from rlax_plugin.protocols import BuildContext

        section, _ = load_section(config, overrides or ())
        registry = registry_for(section)
        registry.validate(section)
        context = BuildContext(
            run_dir=Path(),
            seed=section.seed,
            section=section,
            maxtext_argv=(config, *(overrides or ())),
        )
        slots = objective.resolve(
            section, lambda kind, choice, key: registry.part(kind, choice, key, context)
        )
        advantages.probe(slots.advantages, section.rollouts.group_size)
        typer.echo(f"ok  section rlax: and {len(section.plugins)} plug-ins of {config}")
        if not fast:
            checked = registry.check(section, context)
            what = ", ".join(checked) if checked else "nothing: no part has more to check"
            typer.echo(f"ok  checked by the parts themselves: {what}")


@_command("rlax audit runs/demo")
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
    with _exit_status():
        from rlax_plugin.audit.show import audit_with_progress, print_report
        from rlax_plugin.records.files import RunFiles

        report = audit_with_progress(RunFiles(run))
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        from rich.console import Console

        print_report(Console(), report)
    raise typer.Exit(0 if report.clean else RUN_FAILED)


@_command("rlax replay runs/demo --to 5")
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
    with _exit_status():
        from rlax_plugin.replay import replay as run_again

        status = run_again(run, to, out)
    raise typer.Exit(status)


@_command("rlax plugins configs/demo.yml")
def plugins(
    config: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG", show_default=False, help="also list what it would use"),
    ] = None,
    overrides: Overrides = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Lists the installed plug-ins and, given a config, the parts it would use.

    A plug-in is loaded by a run only if rlax.plugins names it. The parts of a config are shown
    with their options, each with its value and meaning.
    """
    with _exit_status():
        from rlax_plugin import listing

        document: dict[str, Any] = {"installed": listing.installed_rows()}
        if config is not None:
            from rlax_plugin.build import registry_for
            from rlax_plugin.loading import load_section

            section, _ = load_section(config, overrides or ())
            document["used"] = listing.used_rows(registry_for(section), section)
        if as_json:
            typer.echo(json.dumps(document, indent=2, default=str))
            return
        from rich.console import Console

        console = Console()
        listing.print_installed(console, document["installed"])
        if config is not None:
            listing.print_used(console, config, document["used"])


@_command("rlax objective dapo rlax.objective.entropy_coefficient=0.01")
def objective(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", show_default=False, help="a preset; default: list them all"),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE...",
            show_default=False,
            help="keys below rlax.objective to set, such as rlax.objective.kl.coefficient=0.04",
        ),
    ] = None,
    *,
    plugin: Annotated[
        list[str] | None,
        typer.Option(show_default=False, help="a plug-in to load as well; may be repeated"),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print the tables of docs/objectives.md")
    ] = False,
) -> None:
    """Explains an algorithm: formula, sources, parts, options, and one update in numbers.

    An objective is one sum with five slots: aggregation, importance weight, advantage, grad_1 and
    grad_2. A preset fills them; a config may replace any, and add corrections, KL to a reference
    policy or an entropy bonus. What is shown is what rlax train would compute.

    The worked example has four samples of one prompt, with rewards 1, 0, 0 and 1: their
    advantages, and for every token its ratios, its weight and the gradient of the loss.
    """
    with _exit_status():
        from rich.console import Console

        from rlax_plugin import explain
        from rlax_plugin.build import registry_for

        section = explain.section_for(name or "", overrides or (), plugin or ())
        if markdown:
            typer.echo(explain.markdown(registry_for(section)), nl=False)
        elif name is None:
            explain.list_presets(Console(), registry_for(section))
        else:
            explain.show_preset(Console(), section)


@_command("rlax version")
def version() -> None:
    """Prints the version of rlax_plugin and of the libraries underneath."""
    import importlib.metadata

    from rlax_plugin import __version__

    typer.echo(f"rlax-plugin {__version__}")
    for name in ("maxtext", "jax", "google-jetstream", "orbax-checkpoint", "pluggy"):
        try:
            typer.echo(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            typer.echo(f"{name} not installed")


def _check_address(key: str, address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(key, address, "must be host:port")


def main() -> None:
    """Entry point of the ``rlax`` command."""
    app()
