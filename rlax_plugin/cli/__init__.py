"""The command line; ``rlax --help`` lists the commands in the order of their imports."""

import os

from rlax_plugin.cli.common import app

# isort: off
from rlax_plugin.cli import configs, models, reference  # noqa: F401  each registers its commands
from rlax_plugin.cli import running, evaluating, curating  # noqa: F401
from rlax_plugin.cli import records, authoring  # noqa: F401

# isort: on


def main() -> None:
    """Runs the ``rlax`` command line."""
    # Before gRPC is imported: it would print a line for each connection that fails a handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    app()
