"""The command line; ``rlax --help`` lists the commands in the order of their imports."""

import os
import sys
import threading

from rlax_plugin.base.text.secrets import hide_in
from rlax_plugin.run.start.signals import Signals
from rlax_plugin.tools.cli.common import app

# isort: off
from rlax_plugin.tools.cli import configs, models  # noqa: F401  each registers its commands
from rlax_plugin.tools.cli import running, network, evaluating  # noqa: F401
from rlax_plugin.tools.cli import watching, records, authoring  # noqa: F401

# isort: on


_ABANDONED = ("check of a part", "rlax-engine")  # beginnings of the names of threads


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
    """Exits at once if a part still blocks a thread, with the status of the present exception.

    Python would wait for threads that such a part has started. It would also end the thread of an
    engine that is inside a C++ library, such as a compilation of minutes, with an abort.
    """
    blocked = any(one.name.startswith(_ABANDONED) for one in threading.enumerate())
    ended = sys.exception()
    if blocked and isinstance(ended, SystemExit):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)
