"""A third party's package: built, installed and used where nothing of this checkout lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_DEADLINE_S = 300


def python(cwd: Path, *arguments: str, path: Path | str = "") -> str:
    """Stdout of a module, run in ``cwd`` with nothing but ``path`` beside the environment."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(package: Path, directory: Path) -> Path:
    """Where pip has installed a package's wheel, and nothing else; below ``directory``."""
    source, wheels, site = directory / "source", directory / "wheels", directory / "site"
    shutil.copytree(package, source, ignore=shutil.ignore_patterns("__pycache__"))
    quietly = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    here = ("--no-build-isolation", "--no-cache-dir")  # hatchling is part of the environment
    python(source, "pip", "wheel", ".", *quietly, *here, "--wheel-dir", str(wheels))
    (wheel,) = wheels.iterdir()
    assert wheel.name == f"{package.name}-0.1.0-py3-none-any.whl"
    python(directory, "pip", "install", *quietly, "--target", str(site), str(wheel))
    return site
