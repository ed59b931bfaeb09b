"""Command lines that are printed for a user to go on with: they can be pasted as they are."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path


def pasteable(
    program: str, *arguments: str, directory: Path | None = None, anywhere: bool = False
) -> str:
    """A command line that runs a program of this environment, whatever is on ``PATH``.

    Args:
      program: such as ``rlax``. It is named by its path where the shell would find none or another
        one, as in an environment that was not activated: relative to ``directory`` where that is
        shorter.
      arguments: are quoted.
      directory: where it is to be run; None: the working directory.
      anywhere: whether it may also be run in any other directory, so that no path may be relative.
    """
    named = _named(program, directory or Path())
    if anywhere and os.sep in named:
        named = os.path.abspath(named)
    return shlex.join((named, *arguments))


def train_command(argv: Sequence[str]) -> str:
    """What to type to continue a run that was started with these arguments."""
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
