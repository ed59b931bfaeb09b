"""Installs plug-ins for tests: real modules with real metadata, on a path of their own."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A plug-in with one gate; %(name)s and %(gate)s are filled in.
GATE = """
    from rlax_plugin.api import Extension, Section, hookimpl

    class Config(Section):
        low: float = 0.1
        high: float

    @hookimpl
    def rlax_register_gate():
        return {"%(gate)s": Extension(Config, lambda config, context: ("built", config.low))}
"""


def write(folder: Path, module: str, source: str) -> None:
    """Writes a module."""
    (folder / f"{module}.py").write_text(textwrap.dedent(source))


def install(
    folder: Path,
    name: str,
    source: str,
    *,
    target: str = "",
    distribution: str = "",
    version: str = "1.2.3",
) -> None:
    """Writes a module and the metadata that make it plug-in ``name``."""
    write(folder, target.partition(":")[0] or name, source)
    distribution = distribution or f"dist-{name}"
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text(f"[rlax_plugin]\n{name} = {target or name}\n")


@contextmanager
def on_path(folder: Path) -> Iterator[Path]:
    """Makes ``folder`` importable, and forgets afterwards what was imported from it."""
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "") or "").startswith(str(folder)):
                del sys.modules[name]
