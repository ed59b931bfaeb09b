"""The child process of ``rlax_plugin.train``: ``rlax train``, which is stopped with its parent.

The parent holds the other end of the standard input and never writes to it. It closes when the
parent ends in whichever way; then this process stops as if Ctrl-C had been pressed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _stop_with_parent(descriptor: int) -> None:
    while os.read(descriptor, 1024):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Runs ``rlax train`` with the arguments of this process."""
    from rlax_plugin.tools.cli import main as cli

    # A shell that starts a script in the background has it ignore Ctrl-C, and the script this one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    held, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # for the processes of the run
    os.close(nothing)
    threading.Thread(target=_stop_with_parent, args=(held,), daemon=True).start()
    sys.argv = ["rlax", "train", *sys.argv[1:]]
    cli()


if __name__ == "__main__":
    main()
