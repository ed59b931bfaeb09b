"""Commands that explain configs and plug-ins before anything runs: check, plugins, objective."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlax_plugin.cli.common import CONFIGURE, Config, Overrides, command, exit_status


@command(CONFIGURE, "rlax check configs/demo.yml rlax.staleness.max_staleness=2")
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
    with exit_status():
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


@command(CONFIGURE, "rlax plugins configs/demo.yml")
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
    with exit_status():
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


@command(CONFIGURE, "rlax objective dapo rlax.objective.entropy_coefficient=0.01")
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
    with exit_status():
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


@command(CONFIGURE, "rlax version")
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
