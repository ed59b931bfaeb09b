"""Says why a command of ``rlax`` has failed, from its output and its exit status."""

from __future__ import annotations

import signal


def failure(output: str, status: int, log: str) -> str:
    """Returns the error message in a command's output, or its last line if it has printed none.

    Args:
      status: its exit status, negative if a signal ended it.
      log: the file with its output, for messages; empty: none.
    """
    _, found, message = f"\n{output}".rpartition("\nerror: ")
    if found:
        return message.strip()
    seen = f"; its output is in {log}" if log else ""
    if status < 0:
        return f"the signal {signal.Signals(-status).name} ended it{seen}"
    lines = output.split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"it ended with status {status}: {last}{seen}"
