"""Modules that somebody else has put into a directory, named like those that programs import."""

import sys
from importlib import metadata
from pathlib import Path

_OWN = ("rlax_plugin", "rlax_launchers", "rlax_ray", "maxtext_overrides", "gmpy2")


def plant(directory: Path) -> Path:
    """Writes a module for each name of the standard library and of the installed packages.

    Returns:
      A file that does not exist, in which each planted module that is executed writes a line.
    """
    trap = directory / "planted.txt"
    # It imports nothing, as what it would import is planted too.
    code = (
        f"with open({str(trap)!r}, 'a') as file:\n"
        "    file.write(__name__ + '\\n')\n"
        "raise SystemExit(77)\n"
    )
    for name in {*sys.stdlib_module_names, *metadata.packages_distributions(), *_OWN}:
        if name.isidentifier():
            (directory / f"{name}.py").write_text(code)
    return trap
