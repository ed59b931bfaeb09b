"""Weight store ``spoiled``: ``npz``, of which the first writing of one part goes wrong.

Its name begins with the step's eight digits; it is written with one byte flipped, or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rlax_plugin.api import Arrays, BuildContext, Extension, Section, hookimpl
from rlax_plugin.testing.store import FILE, NpzStore


class SpoiledConfig(Section):
    step: int
    how: Literal["flipped", "gone"]


class SpoiledStore(NpzStore):
    def __init__(self, config: SpoiledConfig, note: Path):
        self._config, self._note = config, note

    def save(self, path: str, arrays: Arrays) -> None:
        super().save(path, arrays)
        if Path(path).name.startswith(f"{self._config.step:08d}-") and not self._note.exists():
            self._note.write_text(path)
            file = Path(path, FILE)
            if self._config.how == "gone":
                file.unlink()
            else:
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 1
                file.write_bytes(content)


@hookimpl
def rlax_register_weight_store() -> dict[str, Extension]:
    def build(config: SpoiledConfig, context: BuildContext) -> SpoiledStore:
        return SpoiledStore(config, Path(context.run_dir, "spoiled"))

    return {"spoiled": Extension(SpoiledConfig, build)}
