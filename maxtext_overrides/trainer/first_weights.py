"""Checks that the checkpoint a training starts from exists and belongs to the configured model.

MaxText finds that out when it loads the checkpoint, after devices and workers have been started.
``check_place`` looks at names of files only; ``check_shapes`` has Orbax read names and shapes. No
array is read. Everything that MaxText can load passes, except for converted models:
``check_converted`` compares every key that changes what such a model computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles

if TYPE_CHECKING:
    from maxtext_overrides.config.loading import Config

_KEYS = ("load_parameters_path", "load_full_state_path")
# Orbax writes at least one of them into every checkpoint, or into the step above it.
_ORBAX_FILES = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "checkpoint")
_OTHER_TREES = ("model_params", "model")  # names by which MaxText knows checkpoints of its SFT
_MOST_NAMES = 3  # in a message
_ADAPTERS_KEY, _ADAPTER_CONFIG = "lora.lora_restore_path", "adapter_config.json"  # the file: PEFT's


def chosen(keys: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the key that names the first weights, and its path.

    It is None if the config names none, if the run continues from its own checkpoint, or if the
    weights are in another layout than Orbax's. A checkpoint of adapters has no base: a run of
    adapters reads it whenever it starts.

    Args:
      keys: MaxText's keys.
    """
    if keys.get("source_checkpoint_layout", "orbax") != "orbax":
        return None
    if _continues(keys) and not _adapters(keys).get("enable_lora"):
        return None
    return next(((key, str(path)) for key in _KEYS if (path := keys.get(key))), None)


def chosen_adapters(keys: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the key that names the first adapters, and its path; None as in ``chosen``."""
    path = _adapters(keys).get("lora_restore_path")
    return (_ADAPTERS_KEY, str(path)) if path and not _continues(keys) else None


def _adapters(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    lora = keys.get("lora")
    return lora if isinstance(lora, Mapping) else {}


def _continues(keys: Mapping[str, Any]) -> bool:
    base, name = keys.get("base_output_directory"), keys.get("run_name")
    if not (base and name and keys.get("enable_checkpointing", True)):
        return False
    files = RunFiles(f"{base}/{name}")
    return files.is_local and bool(files.names("checkpoints"))


def is_peft(key: str, path: str) -> bool:
    """True if a key names adapters in a directory of PEFT, and not in a checkpoint."""
    return key == _ADAPTERS_KEY and (Path(path) / _ADAPTER_CONFIG).is_file()


def check_place(key: str, path: str, scan_layers: bool | None) -> None:
    """Checks that a local directory is a checkpoint with the layers as in the config.

    One of PEFT passes: ``models.peft`` checks it.

    Args:
      key: config key that names the directory.
      path: the directory.
      scan_layers: value of the config; None if it is not set.

    Raises:
      ConfigError: it is not; proposes the checkpoint that is probably meant.
    """
    if is_peft(key, path):
        return
    given = Path(path)
    step = given.parent if given.name == "items" else given
    places = (given, given / "items", step)
    if not any((place / name).exists() for place in places for name in _ORBAX_FILES):
        near = next(
            (found for at in (given, given.parent) if (found := at / "0" / "items").is_dir()), None
        )
        hint = f"; did you mean {near}?" if near else ": those of MaxText end with /items"
        raise ConfigError(key, path, f"is not a checkpoint of MaxText{hint}")
    said = RunFiles(step).get_json("_CHECKPOINT_METADATA")
    stored = ((said or {}).get("custom_metadata") or {}).get("scan_layers")
    if isinstance(stored, bool) and scan_layers is not None and stored != scan_layers:
        reason = f"must be {str(stored).lower()}, with which {key} = {path} was written"
        raise ConfigError("scan_layers", scan_layers, reason)


def check_shapes(key: str, path: str, expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Compares names and shapes in a checkpoint with those of the model.

    Args:
      key: config key that names the checkpoint.
      path: the checkpoint.
      expected: variable of the model -> shape.

    Returns:
      Names of variables in the checkpoint that the model lacks; MaxText ignores them.

    Raises:
      ConfigError: the checkpoint cannot be read, or is of another model.
    """
    from maxtext_overrides.models.reading import stored_shapes

    if Path(path).name in _OTHER_TREES:
        return []
    stored = stored_shapes(key, path)
    wrong = {name: stored.get(name) for name in expected if stored.get(name) != expected[name]}
    if wrong:
        listed = "; ".join(
            f"{name} {'is missing' if shape is None else f'has shape {list(shape)}'}, but the "
            f"model of this config has {list(expected[name])}"
            for name, shape in list(wrong.items())[:_MOST_NAMES]
        )
        more = f"; and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
        raise ConfigError(key, path, f"holds the weights of another model: {listed}{more}")
    return sorted(stored.keys() - expected.keys())


def check_converted(key: str, path: str, config: Config) -> None:
    """Checks that a converted model is computed as its own config.json says.

    Names and shapes do not show the base of the rotary positions, an epsilon or a window.

    Args:
      key: config key that names the checkpoint.
      path: the checkpoint.
      config: MaxText's, validated.

    Raises:
      ConfigError: names the first of MaxText's keys that makes it another model.
    """
    from maxtext_overrides.models import agreement, convert

    if (model := convert.described(key, path)) is None:
        return
    for name, (wanted, found) in agreement.differences(model, config).items():
        right = "MaxText's default" if wanted is None else repr(wanted)
        reason = f"must be {right}, with which the model in {convert.home_of(path)} was made"
        raise ConfigError(name, found, reason)
