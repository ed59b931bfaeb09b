"""The weight versions that a run leaves behind, as it lists them in ``versions.json``."""

from __future__ import annotations

import json
import logging
import os
import posixpath
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.config import INT32_MAX
from rlax_plugin.errors import (
    ConfigError,
    WeightsError,
    WeightsUnreadableError,
    WeightsUnwritableError,
)
from rlax_plugin.records.files import RunFiles
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import (
    BASE,
    Canary,
    TensorSpec,
    VersionPart,
    WeightVersion,
)

log = logging.getLogger("rlax.parameter_server")

_LIST = "versions.json"
# Of texts that others have edited: numbers may be infinite, and lists nested without end.
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


def versions_to_json(versions: Iterable[WeightVersion], retired: Iterable[str] = ()) -> str:
    """The JSON text of an index.

    Args:
      retired: paths of parts that have no readers any more and must be deleted.
    """

    document = {"versions": [_plain(v) for v in versions], "retired": list(retired)}
    return json.dumps(document)


def _plain(version: WeightVersion) -> dict[str, Any]:
    # Not by ``asdict``, which copies everything: a version may have thousands of tensors.
    canary = version.canary
    return {
        "version": int(version.version),  # which a plug-in may have given as a scalar of numpy
        "step": int(version.step),
        "parts": [_plain_part(part) for part in version.parts],
        "canary": canary
        and {
            "tokens": np.asarray(canary.tokens).tolist(),
            "logprobs": np.asarray(canary.logprobs).tolist(),
            "tolerance": float(canary.tolerance),
        },
    }


def _plain_part(part: VersionPart) -> dict[str, Any]:
    return {
        "name": part.name,
        "path": part.path,
        "tensors": {
            name: {"shape": spec.shape, "dtype": spec.dtype, "fingerprint": spec.fingerprint}
            for name, spec in part.tensors.items()
        },
        "format": part.format,
    }


def versions_from_json(text: str, source: str) -> list[WeightVersion]:
    """The versions of an index.

    Raises:
      WeightsError: the text is not an index; the message names ``source``.
    """
    try:
        return [
            WeightVersion(
                version=_count(entry["version"]),
                step=_count(entry["step"]),
                parts=_parts(entry["parts"]),
                canary=_canary_from_json(entry["canary"]),
            )
            for entry in json.loads(text)["versions"]
        ]
    except _WRONG as error:
        raise WeightsError(f"{source} is not an index of weight versions: {error!r}") from error


def retired_from_json(text: str, source: str) -> list[str]:
    """The paths of an index that must be deleted.

    Raises:
      WeightsError: the text is not an index; the message names ``source``.
    """
    try:
        return [str(path) for path in json.loads(text).get("retired", ())]
    except _WRONG as error:
        raise WeightsError(f"{source} is not an index of weight versions: {error!r}") from error


def _count(number: Any) -> int:
    """Returns the number of a version or step, if it fits into a message.

    Raises:
      ValueError: it is negative or too large.
    """
    if not 0 <= (count := int(number)) <= INT32_MAX:
        raise ValueError(f"a weight version or its step is {count}")
    return count


def _parts(entries: Sequence[dict[str, Any]]) -> tuple[VersionPart, ...]:
    """The parts of a version.

    Raises:
      ValueError: none of them is ``base``, which every version has.
    """
    parts = tuple(map(_part_from_json, entries))
    if BASE not in (names := [part.name for part in parts]):
        raise ValueError(f"a weight version has the parts {names}, and no {BASE!r}")
    return parts


def _part_from_json(entry: dict[str, Any]) -> VersionPart:
    return VersionPart(
        name=str(entry["name"]),
        path=str(entry["path"]),
        tensors={
            name: TensorSpec(tuple(t["shape"]), str(t["dtype"]), int(t["fingerprint"]))
            for name, t in entry["tensors"].items()
        },
        format=str(entry["format"]),
    )


def _canary_from_json(entry: dict[str, Any] | None) -> Canary | None:
    if entry is None:
        return None
    return Canary(
        tokens=np.array(entry["tokens"], np.int32),
        logprobs=np.array(entry["logprobs"], np.float32),
        tolerance=float(entry["tolerance"]),
    )


@dataclass(frozen=True, slots=True)
class Listed:
    """Versions listed by earlier processes of a run, with their present paths.

    Attributes:
      versions: the versions that can be read, oldest first.
      retired: paths that must be deleted.
    """

    versions: Sequence[WeightVersion] = ()
    retired: Sequence[str] = ()


def record_versions(files: RunFiles, index: str) -> None:
    """Writes a run's list: the text of ``versions_to_json``, and the run it belongs to."""
    document = json.loads(index) | {"run": files.location()}
    files.put(_LIST, json.dumps(document).encode())


def listed_versions(files: RunFiles, directory: str) -> Listed:
    """Versions that this run has listed and may delete.

    A copy of a run's directory contains the list of the original run, whose versions belong to
    the original: only versions inside the copied directory are adopted. In any case, no version
    outside the places of this run's versions is adopted.

    Args:
      directory: parent directory of this run's versions.
    """
    source = files.location(_LIST)
    try:
        text = files.get(_LIST).decode(errors="replace")
        versions, retired = versions_from_json(text, source), retired_from_json(text, source)
        if json.loads(text).get("run") != files.location():
            versions = [_placed(v, [_inside(files, path) for path in v.paths]) for v in versions]
            retired = [_inside(files, path) for path in retired]
    except FileNotFoundError:
        return Listed()
    except WeightsError as error:
        log.warning("weight versions of earlier processes are left where they are: %s", error)
        return Listed()
    places = {directory.rstrip("/"), files.location("weights")}
    there = {p for v in versions for p in v.paths if is_in(places, p) and RunFiles(p).names("")}
    whole = [version for version in versions if there.issuperset(version.paths)]
    # What is left of the others, unless it belongs to a whole version too.
    rest = there.difference(*(version.paths for version in whole))
    return Listed(whole, [*sorted(rest), *(path for path in retired if is_in(places, path))])


def listed_in_index(index: Path, directory: str) -> Listed:
    """The versions in the file of a parameter server of its own; none if there is no file.

    Args:
      directory: parts that do not lie directly in it are left out.

    Raises:
      WeightsError: the file is not an index.
    """
    if not index.exists():
        return Listed()
    text, places = index.read_text(), {directory}
    versions, retired = versions_from_json(text, str(index)), retired_from_json(text, str(index))
    return Listed(
        [v for v in versions if all(is_in(places, path) for path in v.paths)],
        [path for path in retired if is_in(places, path)],
    )


def write_index(path: Path, text: str) -> None:
    """Replaces the file of a parameter server of its own.

    Raises:
      WeightsUnwritableError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        raise WeightsUnwritableError(f"cannot write {path}: {error}") from error


def is_in(places: Collection[str], path: str) -> bool:
    """True if a path is directly below one of the places."""
    parent, name = posixpath.split(path)
    # As it is written: were the same directory another path too, it might be deleted by that.
    if parent in places and name not in ("", ".", "..") and posixpath.join(parent, name) == path:
        return True
    log.warning(
        "%s is said to belong to a version of this run, and is left alone: it lies elsewhere",
        one_line(path, 500),
    )
    return False


def kept_version(files: RunFiles, number: int | None = None) -> WeightVersion:
    """A version that a run has left behind, with the present path of its weights.

    The versions of a run that is still running may disappear at any time: take a lease instead.
    A run's directory may have been moved or copied; its weights are then searched for in there.

    Args:
      number: number of the version; None: the newest.

    Raises:
      ConfigError: the run has not kept that version, or none at all.
      WeightsUnreadableError: the weights no longer exist.
      WeightsError: the run's list of them is damaged.
    """
    there = files.exists(_LIST)
    text = files.get(_LIST).decode(errors="replace") if there else '{"versions": []}'
    kept = {version.version: version for version in versions_from_json(text, files.location(_LIST))}
    if not kept:
        left = " left" if there else ""
        reason = f"has no weight versions{left}: name a checkpoint, RUN/checkpoints/NAME"
        raise ConfigError("RUN", files.url, reason)
    if number is None:
        number = max(kept)
    if number not in kept:
        gone = "is no longer kept" if number < max(kept) else "does not exist"
        reason = f"{gone}; available: {', '.join(map(str, kept))}"
        raise ConfigError(
            "--version",
            number,
            f"{reason} (rlax.weights.keep sets how many are kept); or name a checkpoint, "
            "RUN/checkpoints/NAME",
        )
    return _placed(kept[number], [_found(files, number, path) for path in kept[number].paths])


def _found(files: RunFiles, number: int, path: str) -> str:
    """The path of a part, chosen from the possible ones."""
    inside = _inside(files, path)
    for place in (path, inside):
        if RunFiles(place).names(""):
            return place
    raise WeightsUnreadableError(
        f"the weights of version {number} are gone: neither {path} nor {inside} exists"
    )


def _placed(version: WeightVersion, paths: Iterable[str]) -> WeightVersion:
    """The version with its parts at other paths.

    Raises:
      WeightsError: two of them would have the same path.
    """
    parts = zip(version.parts, paths, strict=True)
    try:
        return replace(version, parts=tuple(replace(part, path=path) for part, path in parts))
    except ValueError as error:
        raise WeightsError(f"version {version.version}: {error}") from error


def _inside(files: RunFiles, path: str) -> str:
    """The path of a part that has moved along with the run's directory."""
    return files.location(f"weights/{posixpath.basename(path.rstrip('/'))}")
