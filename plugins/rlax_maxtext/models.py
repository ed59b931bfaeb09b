"""The trainer's part of ``rlax convert``: a model of another library in MaxText's form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlax_plugin.api import ConvertibleModel

if TYPE_CHECKING:
    from maxtext_overrides.models.convert import Convertible


def examine_model(source: Path, dtype: str, scan_layers: bool) -> ConvertibleModel:
    """See ``Trainer.examine_model``."""
    from maxtext_overrides.models.convert import examine

    found = examine(source, dtype, scan_layers)
    # MaxText takes seconds to import: not before the source is known to be sound.
    from maxtext_overrides.models import agreement

    agreement.check(found.architecture, found.keys, str(source))
    return _Model(found)


class _Model(ConvertibleModel):
    """A model that was examined."""

    def __init__(self, found: Convertible):
        self._found = found
        self.nbytes = found.nbytes
        family = found.architecture.family
        self.description = f"{family}, {found.parameters:,} parameters, {found.dtype}"
        self.notes = [*_notes(found)]

    def write(self, directory: Path, home: Path, progress: Callable[[int, int], None]) -> None:
        self._found.write(directory, home, progress)

    def verification(self, python: str) -> Callable[[Path], Sequence[str]]:
        from maxtext_overrides.models.verify import Verification

        return Verification(self._found, python).compare


def _notes(found: Convertible) -> Iterator[str]:
    if not found.has_tokenizer:
        yield f"{found.source.where} has no tokenizer: set tokenizer_type and tokenizer_path"
    if doubles := found.source.doubles:
        more = f" and {len(doubles) - 1} more" if len(doubles) > 1 else ""
        yield f"{min(doubles)}{more} have float64 values, which are rounded to {found.dtype}"
