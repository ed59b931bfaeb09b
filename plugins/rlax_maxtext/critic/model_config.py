"""MaxText's config of a critic: the policy's, with the keys that the critic sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maxtext_overrides.config import loading
from maxtext_overrides.config.loading import Config
from rlax_plugin.api import ConfigError, ResolvedConfig

# The critic reads the policy's batches on the policy's devices.
_SHARED = ("vocab_size", "max_target_length", "mesh_axes")
# It has no output layer, and nothing predicts tokens.
_NO_OUTPUT = {"num_vocab_tiling": 1, "mtp_num_layers": 0}
_NO_ADAPTERS = {
    "enable_lora": False,
    "lora_rank": 0,
    "lora_alpha": 0.0,
    "lora_module_path": "",
    "lora_restore_path": "",
}


def critic_config(
    given: ResolvedConfig,
    keys: Mapping[str, Any],
    key: str,
    load: Callable[..., Config] = loading.load,
) -> Config:
    """Returns the config of a critic's model.

    Args:
      given: the policy's keys.
      keys: MaxText's keys that differ.
      key: config key of ``keys``.
      load: of ``maxtext_overrides.config.loading``.

    Raises:
      ConfigError: MaxText rejects a key, or the critic could not read the policy's batches.
    """
    policy = load(given)
    try:
        config = load(given, **{**keys, **_NO_OUTPUT, "lora": _NO_ADAPTERS})
    except ConfigError as error:
        if error.key in keys:
            raise ConfigError(f"{key}.{error.key}", error.value, error.reason) from None
        raise ConfigError(key, dict(keys), str(error)) from None
    for name in _SHARED:
        if (own := getattr(config, name)) != (shared := getattr(policy, name)):
            raise ConfigError(key, dict(keys), f"makes {name} {own}, must stay {shared}")
    return config
