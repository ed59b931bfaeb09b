"""Weight versions of the toy policy, saved as a run saves them, and an engine that loads them."""

from pathlib import Path

import numpy as np
from sections import section_with

from rlax_plugin.base.types import Canary, WeightVersion
from rlax_plugin.testing import policy, publish_version
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.store import NpzStore

CANARY_TOKENS = np.array([5, 17, 33, 2, 60, 9], np.int32)


def scripted(store: NpzStore | None = None) -> ScriptedEngine:
    """An engine without special options, of a config with defaults."""
    return ScriptedEngine(ScriptedConfig(), store or NpzStore(), section_with())


def publish(folder: Path, version: int, store: NpzStore | None = None) -> WeightVersion:
    """What the controller's publisher makes of the weights of seed ``version``."""
    weights = policy.initial_weights(version)
    canary = Canary(CANARY_TOKENS, policy.sequence_log_probs(weights, CANARY_TOKENS), 1e-4)
    path = str(folder / f"v{version}")
    return publish_version(store or NpzStore(), path, weights, version=version, canary=canary)
