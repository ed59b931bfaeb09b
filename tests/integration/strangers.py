"""A third party's package: built, installed and used where nothing of this checkout lies."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from processes import python_path

_DEADLINE_S = 300


def python(cwd: Path, *arguments: str, path: Path | str = "") -> str:
    """Stdout of a module, run in ``cwd`` with nothing but ``path`` beside the environment."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": python_path(path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(directory: Path, *packages: Path) -> Path:
    """Where pip has installed the wheels of packages, and nothing else; below ``directory``.

    pip takes seconds to start, so all wheels are built by one process and installed by another.
    """
    wheels, site = directory / "wheels", directory / "site"
    for package in packages:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, directory / "source" / package.name, ignore=ignored)
    sources = [str(directory / "source" / package.name) for package in packages]
    quietly = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    here = ("--no-build-isolation", "--no-cache-dir")  # hatchling is part of the environment
    python(directory, "pip", "wheel", *sources, *quietly, *here, "--wheel-dir", str(wheels))
    built = sorted(wheels.iterdir())
    expected = sorted(f"{package.name}-0.1.0-py3-none-any.whl" for package in packages)
    assert [wheel.name for wheel in built] == expected
    python(directory, "pip", "install", *quietly, "--target", str(site), *map(str, built))
    return site
