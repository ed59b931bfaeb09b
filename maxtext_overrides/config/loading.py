"""Builds MaxText's config from a resolved config, and repeats MaxText's start-up of a trainer.

MaxText is given its own keys and never sees ``rlax:``.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import omegaconf
import yaml
from maxtext.configs import pyconfig
from maxtext.configs.types import MaxTextConfig
from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from maxtext_overrides.config import errors
from maxtext_overrides.config.rejected import rejections
from maxtext_overrides.upstream import lean_imports
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.signatures import check
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import BASE, ResolvedConfig, model_keys
from rlax_plugin.config.yaml_values import dumped

OVERRIDES = BY_MODULE["maxtext_overrides/config/loading.py"]


_PATHS = ("base_output_directory", "load_parameters_path", "load_full_state_path")


def absolute(path: str) -> str:
    """Returns an absolute path; a URL and an empty path stay.

    Orbax wants absolute paths and says so only when the first checkpoint is written.
    """
    return path if not path or "://" in path else os.path.abspath(path)


def _with_absolute(values: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    paths = {key: absolute(p) for key in keys if isinstance(p := values.get(key), str)}
    return {**values, **paths}


class CheckedMaxTextConfig(MaxTextConfig):
    """MaxText's config class, which also rejects values that RL cannot train with."""

    @model_validator(mode="before")
    @classmethod
    def _prepared(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        if rejected := list(rejections(values)):
            raise errors.together(rejected)
        found = _with_absolute(values, _PATHS)
        if isinstance(lora := values.get("lora"), Mapping):
            found["lora"] = _with_absolute(lora, ("lora_restore_path",))
        return found

    @model_validator(mode="wrap")
    @classmethod
    def _dumping_where_asked(cls, values: Any, handler: ModelWrapValidatorHandler) -> Any:
        """Keeps MaxText from setting XLA's dump flags unless ``dump_hlo`` is set.

        MaxText sets flags with which XLA dumps every train step, whatever ``dump_hlo`` is. The
        flags count already while MaxText validates: it counts devices, and XLA reads its flags when
        the first device is needed.
        """
        asked = isinstance(values, Mapping) and (
            values.get("dump_hlo") or values.get("dump_hlo_xla_flags")
        )
        if asked or os.environ.get("XLA_FLAGS"):
            return handler(values)
        os.environ["XLA_FLAGS"] = "--xla_dump_to="  # as without it; MaxText keeps what is set
        try:
            return handler(values)
        finally:
            del os.environ["XLA_FLAGS"]


class Config(pyconfig.HyperParameters):
    """MaxText's settings object, which also holds the validated ``rlax`` section."""

    def __init__(self, model: MaxTextConfig, rlax: RlaxSection):
        super().__init__(model)
        object.__setattr__(self, "_rlax", rlax)

    @property
    def rlax(self) -> RlaxSection:
        return object.__getattribute__(self, "_rlax")

    def copy(self) -> Config:
        """Returns a copy whose values can be set without changing this config."""
        return Config(object.__getattribute__(self, "_pydantic_config"), self.rlax)

    @property
    def allow_untested(self) -> bool:
        """The value of ``rlax.trainer.allow_untested``, which applies to workers as well."""
        return self.rlax.trainer.options.get("allow_untested") is True


def load(config: ResolvedConfig, **overrides: Any) -> Config:
    """Returns MaxText's config, after MaxText has validated its keys.

    Nothing else in the process changes, unless the config asks for it: ``dump_hlo`` sets XLA's
    flags, and ``jax_cache_dir`` moves JAX's compilation cache. MaxText's default for the cache
    applies only if JAX has no directory yet, such as one from ``JAX_COMPILATION_CACHE_DIR``.

    Args:
      config: keys set in a file are passed to MaxText as a file, so a named model's keys win over
        them. Keys set as arguments are passed as arguments and must not contradict the model.
        With ``override_model_config`` both win over the model's.
      overrides: MaxText keys that win over both.

    Raises:
      ConfigError: names each dotted key that is wrong, its value, and what would be right.
    """
    problems: list[ConfigError] = []
    while True:
        try:
            loaded = _loaded(config, overrides)
        except errors.NoSuchKeyError as error:
            problems.append(error)
            if error.key not in config.maxtext:
                break
            # The import takes ten seconds or more: what else is wrong is said with it.
            others = {key: value for key, value in config.maxtext.items() if key != error.key}
            config = replace(config, maxtext=others)
        except ConfigError as error:
            problems.append(error)
            break
        else:
            if not problems:
                return loaded
            break
    raise errors.together(problems)


def _loaded(config: ResolvedConfig, overrides: Mapping[str, Any]) -> Config:
    """Loads once; see ``load``."""
    if config.maxtext.get("steps") == 0:
        # MaxText knows no loop without a step: the trainer ends it before its first.
        steps = config.section.objective.updates_per_step
        config = replace(config, maxtext={**config.maxtext, "steps": steps})
    said = {key: config.maxtext[key] for key in _winning(config)}
    filed = {key: value for key, value in config.maxtext.items() if key not in said}
    overrides = {**_cache_as_it_is(config), **_one_host(config), **said, **overrides}
    try:
        with tempfile.TemporaryDirectory(prefix="rlax-maxtext-") as directory:
            path = Path(directory, "keys.yml")
            path.write_text(dumped(filed))
            # The first argument stands for the program, as in sys.argv.
            argv = ["", str(path)]
            model = pyconfig._initialize_pydantic(
                argv, config_class=CheckedMaxTextConfig, **overrides
            )
    except ValidationError as error:
        fields = CheckedMaxTextConfig.model_fields
        raise errors.of_validation(error, fields, config.maxtext) from None
    except (omegaconf.errors.OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError("config", config.source, " ".join(str(error).split())) from None
    except _MAXTEXT_RAISES as error:
        raise _explained(error, config) from None
    if not model.logical_axis_rules:  # MaxText loads it as if one device had asked
        reason = (
            "must lead to MaxText's base.yml, which says how arrays are divided among devices "
            "(logical_axis_rules): each would hold all of them. Add base_config: base.yml to the "
            "last file of the chain"
        )
        raise ConfigError(BASE, config.maxtext.get(BASE), reason)
    return Config(model, config.section)


def _winning(config: ResolvedConfig) -> set[str]:
    """Returns the keys that win over those of a named model."""
    names = config.arguments & config.maxtext.keys()
    if config.maxtext.get("override_model_config") is True:
        # Of the keys in a file MaxText would still prefer the model's, and say nothing.
        names |= model_keys(str(config.maxtext.get("model_name"))).keys() & config.maxtext.keys()
    return set(names)


def _cache_as_it_is(config: ResolvedConfig) -> dict[str, str]:
    """Returns ``jax_cache_dir`` with JAX's current value if the user has not set the key.

    Without it MaxText would move the cache.
    """
    directory = jax.config.jax_compilation_cache_dir
    if not directory or "jax_cache_dir" in config.maxtext or "M_JAX_CACHE_DIR" in os.environ:
        return {}
    return {"jax_cache_dir": directory}


def _one_host(config: ResolvedConfig) -> dict[str, bool]:
    """Returns ``skip_jax_distributed_system`` as true if the user has not set the key.

    Without it MaxText would look for other hosts, and fail where it finds none. Hosts of a trainer
    have met before (``rlax train --hosts``), and a worker has no others.
    """
    key = "skip_jax_distributed_system"
    return {} if key in config.maxtext or f"M_{key.upper()}" in os.environ else {key: True}


# What MaxText raises where a config does not suit it.
_MAXTEXT_RAISES = (
    ValueError,
    TypeError,
    AssertionError,
    NotImplementedError,
    OSError,
    AttributeError,
    LookupError,
    ArithmeticError,
)


def default_of(key: str) -> Any:
    """Returns MaxText's default of a key."""
    return CheckedMaxTextConfig.model_fields[key].default


def load_to_check(config: ResolvedConfig, **overrides: Any) -> Config:
    """Calls ``load`` with JAX on the CPU, whatever devices the config is meant for."""
    # MaxText's validation counts devices: let it count a processor.
    jax.config.update("jax_platforms", "cpu")
    return load(config, skip_jax_distributed_system=True, **overrides)


@contextmanager
def passed_on(config: ResolvedConfig) -> Iterator[None]:
    """Turns exceptions of MaxText in the block into one ConfigError, and silences its warnings.

    Raises:
      ConfigError: names the key that MaxText's message seems to be about.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    except _MAXTEXT_RAISES as error:
        raise _explained(error, config) from error
    finally:
        logging.disable(disabled)


def without_effect(config: Config, given: ResolvedConfig) -> dict[str, tuple[Any, Any]]:
    """Returns numbers that a file sets and ``model_name`` overrides: key -> (given, in effect).

    MaxText rejects such a contradiction on the command line; in a file it lets the model's value
    win.
    """
    if config.model_name == "default":
        return {}
    return {
        key: (value, getattr(config, key))
        for key, value in given.maxtext.items()
        if isinstance(value, int | float) and getattr(config, key) != value
    }


def _explained(error: Exception, config: ResolvedConfig) -> ConfigError:
    fields = CheckedMaxTextConfig.model_fields
    message = str(error) or type(error).__name__
    return errors.of_text(message, fields, config.maxtext, config.source)


def _check_devices(config: Config) -> None:
    """Rejects an accelerator that JAX has not found, in whose place it would use the processor.

    Raises:
      ConfigError: names what JAX has found.
    """
    devices = jax.devices()
    if config.hardware == "cpu" or any(device.platform != "cpu" for device in devices):
        return
    reason = (
        f"JAX has found no such device, but only {len(devices)} of the platform cpu "
        f"({devices[0].device_kind}): install JAX for this accelerator, or set hardware=cpu to "
        "train on the processor"
    )
    raise ConfigError("hardware", config.hardware, reason)


def initialize(resolved: ResolvedConfig, **overrides: Any) -> Config:
    """Calls ``load`` for a trainer and sets up the process as MaxText's ``train.initialize`` does.

    It differs from upstream in three points: TensorFlow is not imported, so it need not be hidden;
    ``TFDS_DATA_DIR`` is set only if ``dataset_path`` is (an empty value would hide other data
    sets); the goodput recorder is made by ``train_loop.run_train_loop``.

    Raises:
      ConfigError: as ``load``, and what MaxText's ``validate_train_config`` rejects; or JAX has
        not found the accelerator that ``hardware`` names.
    """
    import pathwaysutils

    pathwaysutils.initialize()
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    if "xla_tpu_spmd_rng_bit_generator_unsafe" not in flags:
        os.environ["LIBTPU_INIT_ARGS"] = f"{flags} --xla_tpu_spmd_rng_bit_generator_unsafe=true"
    config = load(resolved, **overrides)
    _check_devices(config)
    vertex = bool(config.use_vertex_tensorboard or os.environ.get("UPLOAD_DATA_TO_TENSORBOARD"))
    train = lean_imports.import_trainer(vertex)
    check(OVERRIDES, config.allow_untested)
    if jax.process_count() > 1 and not config.skip_jax_distributed_system:
        reason = "must be true: hosts find each other by rlax train --hosts, --host, --coordinator"
        raise ConfigError("skip_jax_distributed_system", False, reason)
    train.max_utils.print_system_information()
    try:
        train.train_utils.validate_train_config(config)
    except (AssertionError, ValueError) as error:
        raise _explained(error, resolved) from None
    jax.config.update("jax_use_shardy_partitioner", config.shardy)
    jax.config.update(
        "jax_remove_size_one_mesh_axis_from_type", config.remove_size_one_mesh_axis_from_type
    )
    if config.dataset_path:
        os.environ["TFDS_DATA_DIR"] = config.dataset_path
    if vertex:
        train.VertexTensorboardManager().configure_vertex_tensorboard(config)
    if config.te_comm_gemm_overlap != train.TeCommGemmOverlapPolicy.DISABLED:
        train.max_utils.bootstrap_transformer_engine_cgemm(config)
    train.mllog_utils.init_start(config)
    return config
