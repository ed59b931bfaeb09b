"""The table of upstream symbols in use: each once, under the module that relies on it.

Data only; importing it imports nothing of MaxText, JetStream or JAX.
"""

from __future__ import annotations

from collections.abc import Mapping

from maxtext_overrides.upstream.declared import (
    config,
    jetstream,
    layers,
    loss,
    sampler,
    train_loop,
)
from maxtext_overrides.upstream.declared.config_keys import CONFIG_KEYS
from maxtext_overrides.upstream.override import Override

BY_MODULE: Mapping[str, tuple[Override, ...]] = {
    "maxtext_overrides/config/loading.py": (*config.LOADING, *config.VERTEX),
    "maxtext_overrides and plugins": (CONFIG_KEYS,),
    "maxtext_overrides/config/memory.py": config.MEMORY,
    "maxtext_overrides/trainer/train_loop.py": train_loop.TRAIN_LOOP,
    "maxtext_overrides/trainer/loss.py": loss.LOSS,
    "maxtext_overrides/trainer/output_head.py": loss.OUTPUT_HEAD,
    "maxtext_overrides/trainer/scoring.py": loss.SCORING,
    "maxtext_overrides/trainer/kept_weights.py": loss.KEPT_WEIGHTS,
    "maxtext_overrides/trainer/checkpoints.py": loss.CHECKPOINTS,
    "maxtext_overrides/sampler/maxengine_model.py": sampler.MAXENGINE_MODEL,
    "maxtext_overrides/sampler/sampling.py": sampler.SAMPLING,
    "maxtext_overrides/sampler/windows.py": sampler.WINDOWS,
    "maxtext_overrides/folding.py": layers.FOLDING,
    "maxtext_overrides/tied_head.py": layers.TIED_HEAD,
    "maxtext_overrides/models/rope_scaling.py": layers.ROPE_SCALING,
    "maxtext_overrides/upstream/jetstream_compat.py": jetstream.JETSTREAM_COMPAT,
    "plugins/rlax_jetstream": jetstream.JETSTREAM_SERVICE,
    "rlax_plugin/config/loading.py": config.BASE_FILES,
    "docs/serving.md": config.DOCS,
}
