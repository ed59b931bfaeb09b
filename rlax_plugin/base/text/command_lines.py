"""Formats command lines that users can paste to continue."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from rlax_plugin.base.text.secrets import hidden


def pasteable(program: str, *arguments: str) -> str:
    """Returns a command line that runs a program of this environment, whatever is on ``PATH``.

    Args:
      program: such as ``rlax``. It is named by its path if the shell would not find it or find
        another one, as in an environment that is not activated.
      arguments: quoted if necessary, without secrets, which users fill in again.
    """
    return shlex.join(map(hidden, (_named(program), *arguments)))


def train_command(argv: Sequence[str]) -> str:
    """Returns the command that continues a run that was started with these arguments."""
    return pasteable("rlax", "train", *argv)


def _named(program: str) -> str:
    script = Path(sysconfig.get_path("scripts"), program)
    found = shutil.which(program)
    # Folders are compared: the interpreters of many environments are links to one file.
    is_found = found and os.path.realpath(Path(found).parent) == os.path.realpath(script.parent)
    return program if is_found or not script.exists() else str(script)
