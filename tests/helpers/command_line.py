"""The command line in this process."""

from typer.testing import CliRunner, Result

from rlax_plugin.tools.cli import app


def rlax(*arguments: str) -> Result:
    """Runs a command; an exception that it does not expect comes through."""
    return CliRunner().invoke(app, arguments, catch_exceptions=False)
