"""Commands for authors of plug-ins: new-plugin, check-plugin."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from rlax_plugin.base.text.command_lines import pasteable
from rlax_plugin.tools.cli.common import AUTHORS, RUN_FAILED, command, exit_status, print_error


@command(AUTHORS, "rlax new-plugin length_reward --kind reward")
def new_plugin(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="name of the plug-in and its module, such as length_reward"
        ),
    ],
    *,
    kind: Annotated[
        str,
        typer.Option(
            help="kind of its part: reward, filter, advantage, ...; a wrong kind lists all kinds"
        ),
    ],
    directory: Annotated[
        Path,
        typer.Option(
            help="directory in which the package's folder is created; default: the current one"
        ),
    ] = Path(),
) -> None:
    """Writes a package with one working part and its test, as a starting point.

    The package has an entry point, so rlax.plugins can name it once it is installed. Its test
    checks the part against the contract of its kind.
    """
    with exit_status():
        from rlax_plugin.tools.commands.scaffold import write_package

        package = write_package(name, kind, directory)
    typer.echo(f"wrote {package.folder}")
    for file in package.files:
        typer.echo(f"  {file}")
    commands = (("python", "-m", "pytest"), ("pip", "install", "-e", "."))
    test, install = (pasteable(*words) for words in commands)
    check = pasteable("rlax", "check-plugin", name)
    typer.echo(f"\nNext:\n  {shlex.join(('cd', str(package.folder)))}\n  {test}")
    typer.echo(f"  edit {package.module}: it works as it is\n  {install}")
    typer.echo(f"  {check}\n  {package.usage}")


@command(AUTHORS, "rlax check-plugin rlax_curation")
def check_plugin(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="an entry point or module, as in rlax.plugins; or a function, FILE.py:NAME",
        ),
    ],
    *,
    plugin: Annotated[
        list[str] | None, typer.Option(help="another plug-in that this one needs; may be repeated")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND/NAME.KEY=VALUE",
            help="option of one of its parts, with a YAML value; may be repeated",
        ),
    ] = None,
    deadline: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="time limit for the check of each part")
    ] = 90.0,
) -> None:
    """Checks every part of a plug-in against the contract of its kind.

    The parts are built and called with small example inputs, without starting a run. The result for
    a part is printed as soon as it is known. If a part violates its contract, or blocks beyond the
    deadline, an error says what to change, and the exit status is 1.

    Of a function, such as rewards.py:correct, the file is executed and the parameters are checked;
    the function is not called.
    """
    with exit_status():
        from rlax_plugin.base.errors import ContractError
        from rlax_plugin.base.text.terminal import HarmlessConsole
        from rlax_plugin.testing.checking import Checked
        from rlax_plugin.testing.checking import check_plugin as check
        from rlax_plugin.testing.function_check import check_function, is_function

        console = HarmlessConsole(highlight=False)
        function = is_function(name)
        console.print(f"{'function' if function else 'plug-in'} {name}", soft_wrap=True)

        def show(part: Checked) -> None:
            for finding in part.findings:
                print_error(finding)
            if not part.findings:
                rules = [f"  - {rule}" for rule in part.rules] or [f"  {part.note}"]
                abilities = [f"  {part.abilities}"] * bool(part.abilities)
                lines = [f"ok  {part.kind} {part.name}", *rules, *abilities]
                console.print("\n".join(lines), soft_wrap=True)

        if function:
            for part in check_function(name):
                show(part)
            return
        values = _parsed(options or [])
        try:
            check(name, options=values, plugins=plugin or (), deadline_s=deadline, on_checked=show)
        except ContractError as error:
            broken = len({finding.where for finding in error.findings})
            parts = "1 part does" if broken == 1 else f"{broken} parts do"
            typer.echo(f"plug-in {name}: {parts} not fulfil the contract, see above", err=True)
            raise typer.Exit(RUN_FAILED) from error


def _parsed(options: list[str]) -> dict[str, dict[str, Any]]:
    """Parses texts such as ``filter/narrow.high=0.5``; returns ``kind/name`` -> options."""
    from rlax_plugin.base.errors import ConfigError
    from rlax_plugin.config.loading import overridden

    parsed: dict[str, dict[str, Any]] = {}
    for option in options:
        part, dot, setting = option.partition(".")
        if not dot or part.count("/") != 1:
            raise ConfigError("--options", option, "must be KIND/NAME.KEY=VALUE")
        parsed[part] = overridden(parsed.get(part, {}), [setting])
    return parsed
