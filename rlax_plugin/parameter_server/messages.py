"""Weight versions to protocol messages, to JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from rlax_plugin.errors import WeightsError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import TensorSpec, WeightVersion


def version_to_proto(version: WeightVersion) -> pb.Version:
    return pb.Version(
        version=version.version,
        step=version.step,
        path=version.path,
        tensors={
            name: pb.Tensor(shape=spec.shape, dtype=spec.dtype, fingerprint=spec.fingerprint)
            for name, spec in version.tensors.items()
        },
    )


def version_from_proto(message: pb.Version) -> WeightVersion:
    return WeightVersion(
        version=message.version,
        step=message.step,
        path=message.path,
        tensors={
            name: TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.fingerprint)
            for name, tensor in message.tensors.items()
        },
    )


def versions_to_json(versions: Iterable[WeightVersion]) -> str:
    return json.dumps({"versions": [asdict(version) for version in versions]})


def versions_from_json(text: str, source: str) -> list[WeightVersion]:
    """What ``versions_to_json`` wrote.

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
            )
            for entry in json.loads(text)["versions"]
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise WeightsError(f"{source} is no index of weight versions: {error!r}") from error
