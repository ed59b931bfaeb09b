"""Formats command lines that users can paste to continue."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from rlax_plugin.text.secrets import hidden


def pasteable(
    program: str, *arguments: str, directory: Path | None = None, anywhere: bool = False
) -> str:
    """Returns a command line that runs a program of this environment, whatever is on ``PATH``.

    Args:
      program: such as ``rlax``. It is named by its path if the shell would not find it or find
        another one, as in an environment that is not activated; relative to ``directory`` if that
        is shorter.
      arguments: quoted if necessary, without secrets, which users fill in again.
      directory: directory in which the line is to be run; None: the working directory.
      anywhere: True if it may also be run in any other directory, so that no path may be relative.
    """
    named = _named(program, directory or Path())
    if anywhere and os.sep in named:
        named = os.path.abspath(named)
    return shlex.join(map(hidden, (named, *arguments)))


def train_command(argv: Sequence[str]) -> str:
    """Returns the command that continues a run that was started with these arguments."""
    return pasteable("rlax", "train", *argv)


def _named(program: str, directory: Path) -> str:
    scripts = Path(sysconfig.get_path("scripts"))
    found = shutil.which(program)
    # Folders are compared: the interpreters of many environments are links to one file.
    if found and os.path.realpath(Path(found).parent) == os.path.realpath(scripts):
        return program
    if not (scripts / program).exists():
        return program
    path = str(scripts / program)
    relative = os.path.relpath(path, directory)
    if os.sep not in relative:
        relative = os.path.join(os.curdir, relative)
    return min(relative, path, key=len)
