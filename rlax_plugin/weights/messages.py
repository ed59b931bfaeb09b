"""Converts weight versions to protocol messages and back."""

from __future__ import annotations

import numpy as np

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import (
    MOST_PARTS,
    Canary,
    MemoryCopy,
    TensorSpec,
    VersionPart,
    WeightVersion,
)
from rlax_plugin.config import INT32_MAX
from rlax_plugin.rpc import rlax_pb2 as pb

_LONGEST_PATH = 4096  # characters
_I32, _F32 = np.dtype("<i4"), np.dtype("<f4")


def version_to_proto(version: WeightVersion) -> pb.Version:
    return pb.Version(
        version=version.version,
        step=version.step,
        parts=map(_part_to_proto, version.parts),
        canary=None if version.canary is None else _canary_to_proto(version.canary),
        converted=map(_part_to_proto, version.converted),
    )


def version_from_proto(message: pb.Version) -> WeightVersion:
    """The version in a message of ``version_to_proto``.

    Raises:
      WeightsError: its canary is garbled, or its number, step or parts are invalid.
    """
    for name in ("version", "step"):
        if not 0 <= (number := getattr(message, name)) <= INT32_MAX:
            raise WeightsError(f"a weight version has {name} {number}")
    most = MOST_PARTS + 1  # with more it is rejected below
    for part in (*message.parts[:most], *message.converted[:most]):
        if len(part.path) > _LONGEST_PATH or not part.path.isprintable():
            # No file system takes it, so that it could be neither read nor deleted.
            raise WeightsError(
                f"version {message.version} lies in {one_line(part.path, 500)}, which is no path "
                f"of at most {_LONGEST_PATH} printable characters"
            )
    try:
        return WeightVersion(
            version=message.version,
            step=message.step,
            parts=tuple(map(_part_from_proto, message.parts[:most])),
            canary=_canary_from_proto(message) if message.HasField("canary") else None,
            converted=tuple(map(_part_from_proto, message.converted[:most])),
        )
    except ValueError as error:
        raise WeightsError(f"version {message.version}: {error}") from error


def _part_to_proto(part: VersionPart) -> pb.Part:
    return pb.Part(
        name=part.name,
        path=part.path,
        format=part.format,
        tensors={
            name: pb.Tensor(shape=spec.shape, dtype=spec.dtype, fingerprint=spec.fingerprint)
            for name, spec in part.tensors.items()
        },
        memory=None if (copy := part.memory) is None else _copy_to_proto(copy),
    )


def _copy_to_proto(copy: MemoryCopy) -> pb.MemoryCopy:
    return pb.MemoryCopy(pid=copy.pid, descriptor=copy.descriptor, token=copy.token)


def _part_from_proto(message: pb.Part) -> VersionPart:
    copy = message.memory
    return VersionPart(
        name=message.name,
        path=message.path,
        tensors={
            name: TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.fingerprint)
            for name, tensor in message.tensors.items()
        },
        format=message.format,
        memory=MemoryCopy(copy.pid, copy.descriptor, copy.token)
        if message.HasField("memory")
        else None,
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
