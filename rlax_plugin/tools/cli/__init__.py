"""The command line; ``rlax --help`` lists the commands in the order of their imports."""

import os
import sys

from rlax_plugin.base.text.secrets import hide_in
from rlax_plugin.run.start.signals import Signals
from rlax_plugin.tools.cli.common import app

# isort: off
from rlax_plugin.tools.cli import configs, models  # noqa: F401  each registers its commands
from rlax_plugin.tools.cli import running, network, evaluating  # noqa: F401
from rlax_plugin.tools.cli import watching, records, authoring  # noqa: F401

# isort: on


def main() -> None:
    """Runs the ``rlax`` command line."""
    # Before gRPC is imported: it would print a line for each connection that fails a handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Whatever the umask: who can write a config decides what the run does.
    os.umask(os.umask(0o077) | 0o002)
    _open_missing()
    for stream in (sys.stdout, sys.stderr):
        hide_in(stream)
    try:
        with Signals():  # from here on, as imports take seconds
            app()
    finally:
        _leave()


def _open_missing() -> None:
    """Opens the standard streams that the caller has closed; files would get their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    # The process keeps them to its end.
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def _leave() -> None:
    """Exits at once if a checked part still blocks; Python would wait for the threads it started.

    The exit status is that of the exception that is being raised.
    """
    blocked = sys.modules.get("rlax_plugin.testing.contracts.blocked")
    ended = sys.exception()
    if blocked is not None and blocked.abandoned() and isinstance(ended, SystemExit):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)
