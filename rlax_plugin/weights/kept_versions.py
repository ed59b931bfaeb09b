"""The weight versions that a run leaves behind, as it lists them in ``versions.json``."""

from __future__ import annotations

import base64
import json
import logging
import posixpath
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf.message import DecodeError

from rlax_plugin.base.errors import (
    ConfigError,
    RlaxError,
    WeightsError,
    WeightsUnreadableError,
    WeightsUnwritableError,
)
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.weights.messages import version_from_proto, version_to_proto

log = logging.getLogger("rlax.parameter_server")

_LIST = "versions.json"
_CHECKPOINT = "name a checkpoint, RUN/checkpoints/NAME"
# Of texts that others have edited: lists may be nested without end.
_WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError)


def versions_to_json(versions: Iterable[WeightVersion], retired: Iterable[str] = ()) -> str:
    """The JSON text of an index: for each version its number, and its message in base64.

    Args:
      retired: paths of parts that have no readers any more and must be deleted.
    """
    entries = [
        {"version": int(version.version), "message": base64.b64encode(sent).decode()}
        for version in versions
        for sent in [version_to_proto(version).SerializeToString()]
    ]
    return json.dumps({"versions": entries, "retired": list(retired)})


def versions_from_json(text: str, source: str) -> Listed:
    """The content of an index.

    Raises:
      WeightsError: the text is not an index; the message names ``source``.
    """
    try:
        document = json.loads(text)
        sent = [base64.b64decode(entry["message"], validate=True) for entry in document["versions"]]
        versions = [version_from_proto(pb.Version.FromString(message)) for message in sent]
        return Listed(versions, [str(path) for path in document["retired"]])
    except (*_WRONG, WeightsError) as error:
        raise WeightsError(f"{source} is not an index of weight versions: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Listed:
    """Versions listed by earlier processes of a run, with their present paths.

    Attributes:
      versions: the versions that can be read, oldest first.
      retired: paths that must be deleted.
    """

    versions: Sequence[WeightVersion] = ()
    retired: Sequence[str] = ()


def record_versions(files: RunFiles, index: str, name: str = _LIST) -> None:
    """Writes a run's list: the text of ``versions_to_json``, and the run it belongs to.

    Args:
      name: of the file, below ``files``; a parameter server of its own has another one.

    Raises:
      WeightsUnwritableError: it cannot be written.
    """
    document = json.loads(index) | {"run": files.location()}
    try:
        files.put(name, json.dumps(document).encode())
    except RlaxError as error:
        raise WeightsUnwritableError(str(error)) from error


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
        listed = versions_from_json(text, source)
        versions, retired = listed.versions, listed.retired
        if json.loads(text).get("run") != files.location():
            versions = [_placed(v, lambda path: _inside(files, path)) for v in versions]
            retired = [_inside(files, path) for path in retired]
    except FileNotFoundError:
        return Listed()
    except WeightsError as error:
        log.warning("weight versions of earlier processes are left where they are: %s", error)
        return Listed()
    places = {directory.rstrip("/"), files.location("weights")}
    there = {p for v in versions for p in v.all_paths if is_in(places, p) and RunFiles(p).names("")}
    whole = [
        replace(v, converted=tuple(part for part in v.converted if part.path in there))
        for v in versions
        if there.issuperset(v.paths)
    ]
    # What is left of the others, unless it belongs to a whole version too.
    rest = there.difference(*(version.all_paths for version in whole))
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
    listed, places = versions_from_json(index.read_text(), str(index)), {directory}
    return Listed(
        [v for v in listed.versions if all(is_in(places, path) for path in v.all_paths)],
        [path for path in listed.retired if is_in(places, path)],
    )


def is_in(places: Collection[str], path: str) -> bool:
    """True if a path is directly below one of the places."""
    parent, name = posixpath.split(path)
    # As it is written: were the same directory another path too, it might be deleted by that.
    if parent in places and name not in ("", ".", "..") and posixpath.join(parent, name) == path:
        return True
    message = "%s is said to belong to a version of this run, and is left alone: it lies elsewhere"
    log.warning(message, one_line(path, 500))
    return False


def kept_version(
    files: RunFiles, number: int | None = None, otherwise: str = _CHECKPOINT
) -> WeightVersion:
    """A version that a run has left behind, with the present path of its weights.

    The versions of a run that is still running may disappear at any time: take a lease instead.
    A run's directory may have been moved or copied; its weights are then searched for in there.

    Args:
      number: number of the version; None: the newest.
      otherwise: what to do without it, for messages.

    Raises:
      ConfigError: the run has not kept that version, or none at all.
      WeightsUnreadableError: the weights no longer exist.
      WeightsError: the run's list of them is damaged.
    """
    kept = kept_versions(files, otherwise)
    if number is None:
        number = max(kept)
    if number not in kept:
        gone = "is no longer kept" if number < max(kept) else "does not exist"
        reason = f"{gone}; available: {', '.join(map(str, kept))}"
        raise ConfigError(
            "--version",
            number,
            f"{reason} (rlax.weights.keep sets how many are kept); or {otherwise}",
        )
    native = replace(kept[number], converted=())
    return _placed(native, lambda path: _found(files, number, path))


def kept_versions(files: RunFiles, otherwise: str) -> dict[int, WeightVersion]:
    """The versions that a run lists, one at least, by number; raises as ``kept_version``."""
    kept: dict[int, WeightVersion] = {}
    if there := files.exists(_LIST):
        text = files.get(_LIST).decode(errors="replace")
        listed = versions_from_json(text, files.location(_LIST))
        kept = {version.version: version for version in listed.versions}
    if not kept:
        left = " left" if there else ""
        reason = f"has no weight versions{left}: {otherwise}"
        raise ConfigError("RUN", files.url, reason)
    return kept


def _found(files: RunFiles, number: int, path: str) -> str:
    """The path of a part, chosen from the possible ones."""
    inside = _inside(files, path)
    for place in (path, inside):
        if RunFiles(place).names(""):
            return place
    raise WeightsUnreadableError(
        f"the weights of version {number} are gone: neither {path} nor {inside} exists"
    )


def _placed(version: WeightVersion, place: Callable[[str], str]) -> WeightVersion:
    """The version with its parts at other paths.

    Raises:
      WeightsError: two of them would have the same path.
    """
    parts, converted = (
        tuple(replace(part, path=place(part.path)) for part in those)
        for those in (version.parts, version.converted)
    )
    try:
        return replace(version, parts=parts, converted=converted)
    except ValueError as error:
        raise WeightsError(f"version {version.version}: {error}") from error


def _inside(files: RunFiles, path: str) -> str:
    """The path of a part that has moved along with the run's directory."""
    return files.location(f"weights/{posixpath.basename(path.rstrip('/'))}")
