"""Weight versions to protocol messages, to JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from rlax_plugin.errors import WeightsError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import Canary, TensorSpec, WeightVersion

_I32, _F32 = np.dtype("<i4"), np.dtype("<f4")


def version_to_proto(version: WeightVersion) -> pb.Version:
    return pb.Version(
        version=version.version,
        step=version.step,
        path=version.path,
        tensors={
            name: pb.Tensor(shape=spec.shape, dtype=spec.dtype, fingerprint=spec.fingerprint)
            for name, spec in version.tensors.items()
        },
        canary=None if version.canary is None else _canary_to_proto(version.canary),
    )


def version_from_proto(message: pb.Version) -> WeightVersion:
    """What ``version_to_proto`` made.

    Raises:
      WeightsError: its canary is garbled.
    """
    return WeightVersion(
        version=message.version,
        step=message.step,
        path=message.path,
        tensors={
            name: TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.fingerprint)
            for name, tensor in message.tensors.items()
        },
        canary=_canary_from_proto(message) if message.HasField("canary") else None,
    )


def _canary_to_proto(canary: Canary) -> pb.Canary:
    return pb.Canary(
        tokens=np.asarray(canary.tokens, _I32).tobytes(),
        logprobs=np.asarray(canary.logprobs, _F32).tobytes(),
        tolerance=canary.tolerance,
    )


def _canary_from_proto(message: pb.Version) -> Canary:
    sent = message.canary
    try:
        tokens = np.frombuffer(sent.tokens, _I32)
        logprobs = np.frombuffer(sent.logprobs, _F32)
    except ValueError as error:
        raise WeightsError(f"version {message.version}: its canary is garbled: {error}") from error
    if len(tokens) != len(logprobs) + 1:
        raise WeightsError(
            f"version {message.version}: its canary has {len(tokens)} tokens and "
            f"{len(logprobs)} log-probs"
        )
    return Canary(tokens, logprobs, sent.tolerance)


def versions_to_json(versions: Iterable[WeightVersion], retired: Iterable[str] = ()) -> str:
    """An index of versions.

    Args:
      retired: paths of others, which nobody is to read any more and which are to be deleted.
    """

    def plain(array: object) -> object:  # of a canary
        return np.asarray(array).tolist()

    document = {"versions": [asdict(v) for v in versions], "retired": list(retired)}
    return json.dumps(document, default=plain)


def versions_from_json(text: str, source: str) -> list[WeightVersion]:
    """The versions of an index.

    Raises:
      WeightsError: the text is something else; names ``source``.
    """
    try:
        return [
            WeightVersion(
                version=int(entry["version"]),
                step=int(entry["step"]),
                path=str(entry["path"]),
                tensors={
                    name: TensorSpec(tuple(t["shape"]), str(t["dtype"]), int(t["fingerprint"]))
                    for name, t in entry["tensors"].items()
                },
                canary=_canary_from_json(entry["canary"]),
            )
            for entry in json.loads(text)["versions"]
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise WeightsError(f"{source} is no index of weight versions: {error!r}") from error


def retired_from_json(text: str, source: str) -> list[str]:
    """The paths of an index that are to be deleted.

    Raises:
      WeightsError: the text is something else; names ``source``.
    """
    try:
        return [str(path) for path in json.loads(text).get("retired", ())]
    except (ValueError, TypeError, AttributeError) as error:
        raise WeightsError(f"{source} is no index of weight versions: {error!r}") from error


def _canary_from_json(entry: dict[str, Any] | None) -> Canary | None:
    if entry is None:
        return None
    return Canary(
        tokens=np.array(entry["tokens"], np.int32),
        logprobs=np.array(entry["logprobs"], np.float32),
        tolerance=float(entry["tolerance"]),
    )
