"""The log of a process, in which every line that is not indented begins a message.

A message or an error may repeat what a client, a worker or a model has said. So all lines but the
first one of a message are indented, what terminals obey is escaped, and secrets are hidden.
"""

from __future__ import annotations

import logging
from typing import TextIO

from rlax_plugin.base.text.harmless import in_line
from rlax_plugin.base.text.secrets import hidden

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(in_line, hidden(super().format(record)).split("\n")))


def log_to(stream: TextIO) -> logging.Handler:
    """Sends the log of this process to a stream, from level INFO on; returns what does it."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    return handler
