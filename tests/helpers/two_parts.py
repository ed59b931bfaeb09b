"""The toy policy in two parts: ``adapter`` has its biases and changes, ``base`` all the rest."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from toy_versions import CANARY_TOKENS

from rlax_plugin.base.types import Canary, VersionPart, WeightVersion
from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.testing import policy
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.weights.fingerprint import fingerprint_numpy

BASE = {name: a for name, a in policy.initial_weights(0).items() if name != "bias"}


def adapter(seed: int) -> dict[str, np.ndarray]:
    return {"bias": policy.initial_weights(seed)["bias"]}


def canary(seed: int, base: Mapping[str, np.ndarray] = BASE) -> Canary:
    weights = {**base, **adapter(seed)}
    return Canary(CANARY_TOKENS, policy.sequence_log_probs(weights, CANARY_TOKENS), 1e-4)


class NotingStore(NpzStore):
    """Notes the paths of what is written, read and deleted."""

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.loaded: list[str] = []
        self.deleted: list[str] = []

    def save(self, path: str, arrays: Arrays) -> None:
        super().save(path, arrays)
        self.saved.append(path)

    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        self.loaded.append(path)
        return super().load(path, like)

    def delete(self, path: str) -> None:
        super().delete(path)
        self.deleted.append(path)


def version_of(number: int, base: str, adapter: str) -> WeightVersion:
    """A version that says only where its parts are."""
    parts = (VersionPart("base", base), VersionPart("adapter", adapter))
    return WeightVersion(number, number, parts)


def fingerprints(version: WeightVersion) -> dict[str, int]:
    return {name: spec.fingerprint for name, spec in version.tensors.items()}


def expected_fingerprints(seed: int) -> dict[str, int]:
    return {name: int(n) for name, n in fingerprint_numpy({**BASE, **adapter(seed)}).items()}
