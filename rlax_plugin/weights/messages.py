"""Weight versions to protocol messages and back."""

from __future__ import annotations

import numpy as np

from rlax_plugin.config import INT32_MAX
from rlax_plugin.errors import WeightsError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import Canary, TensorSpec, WeightVersion

_LONGEST_PATH = 4096  # characters
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
      WeightsError: its canary is garbled, or its number, step or path cannot be those of a version.
    """
    for name in ("version", "step"):
        if not 0 <= (number := getattr(message, name)) <= INT32_MAX:
            raise WeightsError(f"a weight version has {name} {number}")
    if len(message.path) > _LONGEST_PATH or not message.path.isprintable():
        # No file system takes it, so that it could be neither read nor deleted.
        raise WeightsError(
            f"version {message.version} lies in {one_line(message.path, 500)}, which is no path of "
            f"at most {_LONGEST_PATH} printable characters"
        )
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
