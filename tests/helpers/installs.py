"""Installs plug-ins for tests: real modules with real metadata, on a path of their own."""

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A plug-in with one filter; %(name)s and %(filter)s are filled in.
FILTER = """
    from rlax_plugin.api import Extension, Section, hookimpl

    class Config(Section):
        low: float = 0.1
        high: float

    @hookimpl
    def rlax_register_filter():
        return {"%(filter)s": Extension(Config, lambda config, context: ("built", config.low))}
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


# A plug-in with a part of each kind that a whole config needs.
PARTS = """
    from rlax_plugin.api import ConfigError, Extension, NoOptions, Section, Trainer, hookimpl

    class Config(Section):
        slots: int = 4

    def part(name):
        return {name: Extension(Config, lambda config, context: (name, config.slots))}

    @hookimpl
    def rlax_register_prompt_source(): return part("source")
    @hookimpl
    def rlax_register_reward(): return part("right")
    @hookimpl
    def rlax_register_rollout_engine(): return part("engine")
    @hookimpl
    def rlax_register_weight_store(): return part("store")
    @hookimpl
    def rlax_register_launcher(): return part("launch")
    @hookimpl
    def rlax_register_tracker(): return part("track")

    class Paid(Trainer):
        def __init__(self, reward):
            self.reward = reward

        def run(self, port):
            pass

    def build(config, context):
        return Paid(context.part("reward", context.section.rewards[0], "rlax.rewards.0"))

    def check(config, context):
        if context.config is not None:
            raise ConfigError("steps", context.config.source, "must be none")

    @hookimpl
    def rlax_register_trainer(): return {"train": Extension(NoOptions, build, check)}
"""
