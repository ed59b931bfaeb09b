"""Fetches wheels of versions that are not installed, and keeps them in ``.cache/maxtext``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rlax_plugin.errors import RlaxError
from rlax_plugin.processes.python import python_command

FOLDER = Path(".cache/maxtext")  # below the working directory
_FETCH_S = 600  # for a few megabytes, on a slow network


class FetchError(RlaxError):
    """A version cannot be fetched."""


def kept(distribution: str, version: str, folder: Path = FOLDER) -> Path | None:
    """Returns the wheel of a version if it was fetched before."""
    name = distribution.replace("-", "_")
    return next(iter(sorted(folder.glob(f"{name}-{version}-*.whl"))), None)


def fetch(distribution: str, version: str, folder: Path = FOLDER) -> Path:
    """Returns the wheel of a version, without its dependencies and without installing anything.

    Raises:
      FetchError: there is no such version, or the registry cannot be reached.
    """
    if (wheel := kept(distribution, version, folder)) is not None:
        return wheel
    requirement = f"{distribution}=={version}"
    command = python_command("-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=_FETCH_S
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"cannot fetch {requirement} within {_FETCH_S} s") from error
    wheel = kept(distribution, version, folder)
    if done.returncode or wheel is None:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(f"cannot fetch {requirement}: {said[-1] if said else 'no wheel of it'}")
    return wheel
