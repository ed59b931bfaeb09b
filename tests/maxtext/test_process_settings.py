"""Loading a config changes how the process compiles only where the config says so."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from maxtext_overrides.config.loading import initialize, load
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.loading import resolve

MAXTEXT = str(Path(__file__).parents[1] / "configs/maxtext.yml")


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A process whose JAX was told of ``<tmp_path>/told``, and that sets no flags of XLA."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XLA_FLAGS", "")  # so that what is set below is taken away afterwards
    monkeypatch.delenv("XLA_FLAGS")
    told = str(tmp_path / "told")
    jax.config.update("jax_compilation_cache_dir", told)
    yield told
    jax.config.update("jax_compilation_cache_dir", before)


def test_maxtexts_defaults_change_nothing(settings: str) -> None:
    config = load(resolve(MAXTEXT))
    assert jax.config.jax_compilation_cache_dir == config.jax_cache_dir == settings
    assert "XLA_FLAGS" not in os.environ and not config.dump_hlo_xla_flags


def test_flags_that_are_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--xla_force_host_platform_device_count=1"
    monkeypatch.setenv("XLA_FLAGS", flags)
    load(resolve(MAXTEXT))
    assert os.environ["XLA_FLAGS"] == flags


def test_a_cache_is_where_the_arguments_or_any_file_say(tmp_path, monkeypatch) -> None:
    own = str(tmp_path / "own")
    load(resolve(MAXTEXT, [f"jax_cache_dir={own}"]))
    assert jax.config.jax_compilation_cache_dir == own

    (tmp_path / "base.yml").write_text(f"base_config: {MAXTEXT}\njax_cache_dir: {own}/base\n")
    (tmp_path / "run.yml").write_text("base_config: base.yml\n")
    load(resolve(tmp_path / "run.yml"))
    assert jax.config.jax_compilation_cache_dir == f"{own}/base"

    monkeypatch.setenv("M_JAX_CACHE_DIR", f"{own}/environment")
    load(resolve(MAXTEXT))
    assert jax.config.jax_compilation_cache_dir == f"{own}/environment"


def test_a_process_that_was_told_of_no_cache_uses_maxtexts() -> None:
    jax.config.update("jax_compilation_cache_dir", None)
    load(resolve(MAXTEXT))
    assert jax.config.jax_compilation_cache_dir == os.path.expanduser("~/jax_cache")


@pytest.mark.parametrize("asking", ["dump_hlo=true", "dump_hlo_xla_flags=--xla_dump_to=/dumped"])
def test_xla_dumps_programs_where_it_is_asked_to(tmp_path: Path, asking: str) -> None:
    load(resolve(MAXTEXT, [asking, f"dump_hlo_local_dir={tmp_path}/dumped"]))
    assert "--xla_dump_to=/" in os.environ["XLA_FLAGS"]
    assert "/dumped" in os.environ["XLA_FLAGS"]


def test_a_config_that_does_not_speak_of_hosts_has_one() -> None:
    given = resolve(MAXTEXT)
    keys = dict(given.maxtext)
    del keys["skip_jax_distributed_system"]
    assert load(replace(given, maxtext=keys)).skip_jax_distributed_system is True
    spoken = resolve(MAXTEXT, ["skip_jax_distributed_system=false"])
    assert load(spoken).skip_jax_distributed_system is False


@pytest.mark.parametrize("hardware", ["tpu", "gpu"])
def test_training_does_not_begin_on_a_processor_in_place_of_an_accelerator(
    hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = jax.devices("cpu")
    monkeypatch.setattr(jax, "devices", lambda *_: processor)
    told = f"hardware = '{hardware}': JAX has found no such device.*of the platform cpu"
    with pytest.raises(ConfigError, match=told):
        initialize(resolve(MAXTEXT, [f"hardware={hardware}"]))
