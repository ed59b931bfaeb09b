"""Weight versions of the toy policy, saved as a run saves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlax_plugin.testing import policy
from rlax_plugin.testing.builders import make_version
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.types import Canary, TensorSpec, WeightVersion
from rlax_plugin.weights.fingerprint import fingerprint_numpy

CANARY_TOKENS = np.array([5, 17, 33, 2, 60, 9], np.int32)


def publish(folder: Path, version: int, store: NpzStore | None = None) -> WeightVersion:
    """What the controller's publisher makes of the weights of seed ``version``."""
    weights = policy.initial_weights(version)
    path = str(folder / f"v{version}")
    (store or NpzStore()).save(path, weights)
    prints = fingerprint_numpy(weights)
    tensors = {n: TensorSpec(a.shape, "float32", int(prints[n])) for n, a in weights.items()}
    canary = Canary(CANARY_TOKENS, policy.sequence_log_probs(weights, CANARY_TOKENS), 1e-4)
    return make_version(version, path, tensors, canary)
