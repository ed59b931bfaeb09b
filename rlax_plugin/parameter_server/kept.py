"""The weight versions that a run leaves behind, by its own list of them."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from rlax_plugin.errors import ConfigError, WeightsError
from rlax_plugin.parameter_server.messages import versions_from_json
from rlax_plugin.records.files import RunFiles
from rlax_plugin.types import WeightVersion

_LIST = "versions.json"


def record_versions(files: RunFiles, index: str) -> None:
    """Writes a run's list, the text of ``versions_to_json``."""
    files.put(_LIST, index.encode())


def kept_version(files: RunFiles, number: int | None = None) -> WeightVersion:
    """A version that a run has left behind, with a path at which its weights are.

    Those of a run that is still going on may be gone the next moment: take a lease instead. A
    run's directory may have been moved or copied; its weights are then looked for in there.

    Args:
      number: None is the newest.

    Raises:
      ConfigError: the run has not kept that version, or none at all.
      WeightsError: its list of them is damaged, or the weights are gone.
    """
    text = files.get(_LIST).decode() if files.exists(_LIST) else '{"versions": []}'
    kept = {version.version: version for version in versions_from_json(text, files.location(_LIST))}
    if not kept:
        reason = "has kept no weight version: rlax eval --step measures a checkpoint"
        raise ConfigError("RUN", files.url, reason)
    if number is None:
        number = max(kept)
    if number not in kept:
        reason = f"is not kept any more: there is {', '.join(map(str, kept))}"
        raise ConfigError(
            "--version",
            number,
            f"{reason} (rlax.weights.keep sets how many stay); rlax eval --step measures a "
            "checkpoint",
        )
    found = kept[number]
    inside = files.location(f"weights/{posixpath.basename(found.path.rstrip('/'))}")
    for path in (found.path, inside):
        if RunFiles(path).names(""):
            return replace(found, path=path)
    raise WeightsError(
        f"the weights of version {number} are gone: there is neither {found.path} nor {inside}"
    )
