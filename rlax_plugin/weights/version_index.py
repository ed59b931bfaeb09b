"""The index ``versions.json``: versions that can be read, and paths that must be deleted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlax_plugin.config import INT32_MAX
from rlax_plugin.errors import WeightsError
from rlax_plugin.types import (
    BASE,
    NATIVE,
    Canary,
    TensorSpec,
    VersionPart,
    WeightVersion,
)

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
                # Before versions had parts, each was what is now its only one.
                parts=_parts(entry.get("parts", (entry,))),
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
        name=str(entry.get("name", BASE)),
        path=str(entry["path"]),
        tensors={
            name: TensorSpec(tuple(t["shape"]), str(t["dtype"]), int(t["fingerprint"]))
            for name, t in entry["tensors"].items()
        },
        format=str(entry.get("format", NATIVE)),
    )


def _canary_from_json(entry: dict[str, Any] | None) -> Canary | None:
    if entry is None:
        return None
    return Canary(
        tokens=np.array(entry["tokens"], np.int32),
        logprobs=np.array(entry["logprobs"], np.float32),
        tolerance=float(entry["tolerance"]),
    )
