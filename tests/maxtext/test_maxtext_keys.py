"""What a config file, the command line and a named model make of MaxText's keys."""

import pytest
from tiny_loop import TINY

from maxtext_overrides.config import loading as rlax_config
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.loading import resolve


def test_config_reads_the_section_and_the_command_line():
    config = rlax_config.load(
        resolve(TINY, ["rlax.staleness.max_staleness=3", "steps=7"]), run_name="x"
    )
    assert (config.rlax.staleness.max_staleness, config.steps, config.run_name) == (3, 7, "x")
    assert config.rlax.prompt_source.name == "none"
    assert not config.allow_untested


def test_an_option_of_the_trainer_is_merged_with_those_of_the_file():
    allowed = "rlax.trainer.allow_untested=true"
    config = rlax_config.load(resolve(TINY, [allowed, "rlax.trainer.warm_start.steps=5"]))
    warm = config.rlax.trainer.options["warm_start"]
    assert config.allow_untested and (warm["steps"], warm["batch_rows"]) == (5, 32)


def test_maxtext_is_given_its_own_keys_alone():
    """What arguments set, it rejects where a model says otherwise; a file's keys it passes over."""
    given = resolve(TINY, ["steps=7", "rlax.seed=3"])
    config = rlax_config.load(given, run_name="x")
    assert (
        "rlax" not in config.get_keys()
        and "rlax" not in rlax_config.CheckedMaxTextConfig.model_fields
    )
    assert config.copy().rlax is config.rlax is given.section and config.rlax.seed == 3
    with pytest.raises(ConfigError, match="base_emb_dim"):
        rlax_config.load_to_check(resolve(TINY, ["model_name=qwen3-0.6b", "base_emb_dim=8"]))


def test_relative_directories_become_absolute_and_buckets_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = rlax_config.load(resolve(TINY, ["base_output_directory=runs"]))
    assert config.checkpoint_dir == f"{tmp_path}/runs/tiny/checkpoints/"
    adapters = "lora={enable_lora: true, lora_rank: 1, lora_alpha: 1, lora_restore_path: a/items}"
    config = rlax_config.load(resolve(TINY, [adapters]))
    assert config.lora.lora_restore_path == f"{tmp_path}/a/items"
    config = rlax_config.load(resolve(TINY, ["base_output_directory=gs://bucket/runs"]))
    assert config.checkpoint_dir == "gs://bucket/runs/tiny/checkpoints/"


def test_what_a_model_sets_otherwise_than_the_file_is_told():
    given = resolve(TINY, ["model_name=qwen3-0.6b"])
    found = rlax_config.without_effect(rlax_config.load_to_check(given), given)
    assert found["base_emb_dim"] == (32, 1024) and found["vocab_size"] == (64, 151936)
    assert "per_device_batch_size" not in found
