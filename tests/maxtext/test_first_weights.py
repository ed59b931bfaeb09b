"""``rlax check`` compares the checkpoint that training starts from with the config's model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from command_line import rlax
from small_tokenizers import byte_level

from maxtext_overrides.config.loading import load_to_check
from maxtext_overrides.models.convert import home_of
from maxtext_overrides.trainer.first_weights import check_converted
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.loading import merged, resolve, resolved
from rlax_plugin.tools.commands.convert import convert

MAXTEXT = str(Path(__file__).parents[1] / "configs/maxtext.yml")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """``scan_layers`` -> directory with a model of two layers."""
    home = tmp_path_factory.mktemp("models")
    source = str(tiny_models.write("llama3", home / "source"))
    for scanned in (True, False):
        out = str(home / str(scanned))
        convert(source, out, dtype="float32", scan_layers=scanned, trainer="maxtext")
    return {scanned: home / str(scanned) for scanned in (True, False)}


def keys_of(directory: Path) -> dict[str, Any]:
    """What it says of the model, as arguments can."""
    keys = merged(directory / "model.yml", ())
    assert keys.pop("base_config") == "base.yml"
    return keys


def checked(directory: Path, *overrides: str) -> tuple[int, str]:
    keys = keys_of(directory)
    model = (f"{key}={json.dumps(value)}" for key, value in keys.items())
    result = rlax("check", MAXTEXT, *model, *overrides)
    return result.exit_code, result.stderr.replace(str(directory), "DIR")


RLAX = {"prompt_source": {"name": "none"}, "rewards": [{"name": "none"}]}
PLACE = "is not a checkpoint of MaxText; did you mean DIR/0/items?"
OTHER = "error: load_parameters_path = 'DIR/0/items': holds the weights of another model: "


def test_check_takes_what_maxtext_loads(converted: dict[bool, Path]) -> None:
    assert checked(converted[False]) == (0, "")
    # MaxText also takes the directory of the step.
    assert checked(converted[True], f"load_parameters_path={converted[True]}/0") == (0, "")


def test_what_is_no_checkpoint_is_rejected(converted: dict[bool, Path]) -> None:
    at = converted[True]
    for place in ("", "/huggingface"):
        code, message = checked(at, f"load_parameters_path={at}{place}", "--fast")
        assert (code, message) == (2, f"error: load_parameters_path = 'DIR{place}': {PLACE}\n")
    nowhere = f"load_parameters_path={at}/0/items/ocdbt.process_0/d"
    assert "those of MaxText end with /items" in checked(at, nowhere, "--fast")[1]


@pytest.mark.parametrize("scanned", [True, False])
def test_layers_must_be_as_the_checkpoint_has_them(
    converted: dict[bool, Path], scanned: bool
) -> None:
    code, message = checked(converted[scanned], f"scan_layers={not scanned}", "--fast")
    right = f"must be {str(scanned).lower()}, with which load_parameters_path = DIR/0/items"
    assert (code, message) == (2, f"error: scan_layers = {not scanned}: {right} was written\n")


@pytest.mark.parametrize(
    ("scanned", "override", "expected"),
    [
        (
            True,
            "base_num_decoder_layers=4",
            "decoder.layers.mlp.wi_0.kernel has shape [64, 2, 96], but the model of this config "
            "has [64, 4, 96]; ",
        ),
        (
            False,
            "base_num_decoder_layers=3",
            "decoder.layers_2.mlp.wi_0.kernel is missing, but the model of this config has "
            "[64, 96]; ",
        ),
    ],
)
def test_other_shapes_are_named(
    converted: dict[bool, Path], scanned: bool, override: str, expected: str
) -> None:
    code, message = checked(converted[scanned], override)
    assert code == 2 and message.startswith(OTHER + expected) and message.count("\n") == 1


def test_a_tokenizer_that_is_too_large_is_another_models(
    converted: dict[bool, Path], tmp_path: Path
) -> None:
    chat = ("rlax.plugins=[chat_numbers]", "rlax.prompt_source={name: chat_numbers}")
    other = byte_level(tmp_path / "other")
    code, message = checked(converted[True], *chat, f"tokenizer_path={other}")
    source = f"error: rlax.prompt_source = 'chat_numbers': uses the tokenizer in {other}, which has"
    assert code == 2 and message.startswith(source)
    assert "not belong to the model in DIR/0/items, which has vocab_size = 96" in message


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("rope_max_timescale", 10_000, "500000"),
        ("rope_type", "default", "'llama3.1'"),
        ("rope_linear_scaling_factor", 32.0, "MaxText's default"),
    ],
)
def test_a_converted_model_is_computed_as_its_config_says(
    converted: dict[bool, Path], key: str, value: object, right: str
) -> None:
    """No shape shows these keys."""
    code, message = checked(converted[True], f"{key}={json.dumps(value)}")
    assert code == 2 and message.startswith(f"error: {key}") and message.count("\n") == 1
    assert f": must be {right}, with which the model in DIR was made" in message


PUBLISHED = json.loads((Path(__file__).parents[1] / "data/published_models.json").read_text())


def test_a_named_model_is_accepted_only_if_every_key_agrees(tmp_path: Path) -> None:
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "converted.json").write_text("{}")
    keys = {"base_config": "base.yml", "run_name": "named", "hardware": "cpu", "rlax": RLAX}
    config = load_to_check(resolved(keys | {"model_name": "qwen3-30b-a3b-base"}, source="test"))

    def check(**changes: Any) -> None:
        content = json.dumps(PUBLISHED["Qwen3-30B-A3B"]["config"] | changes)
        (tmp_path / "huggingface" / "config.json").write_text(content)
        check_converted("load_parameters_path", str(tmp_path / "0" / "items"), config)

    check()
    flips: dict[str, tuple[Any, str]] = {
        "rope_theta": (1e7, "rope_max_timescale"),
        "rms_norm_eps": (1e-5, "normalization_layer_epsilon"),
        "head_dim": (64, "head_dim"),
        "num_hidden_layers": (40, "base_num_decoder_layers"),
        "tie_word_embeddings": (True, "logits_via_embedding"),
        "rope_scaling": ({"rope_type": "linear", "factor": 2.0}, "rope_linear_scaling_factor"),
        "num_experts_per_tok": (4, "num_experts_per_tok"),
        "num_experts": (64, "num_e"),
        "norm_topk_prob": (False, "norm_topk_prob"),
    }
    for key, (value, named) in flips.items():
        with pytest.raises(ConfigError, match=named):
            check(**{key: value})


def test_ignored_layers_are_a_warning(converted: dict[bool, Path], tmp_path: Path) -> None:
    """Of a checkpoint of which nothing says how it was made."""
    shutil.copytree(converted[False] / "0", tmp_path / "0")
    keys = keys_of(converted[False]) | {
        "base_num_decoder_layers": 1,
        "load_parameters_path": str(tmp_path / "0" / "items"),
    }
    model = (f"{key}={json.dumps(value)}" for key, value in keys.items())
    result = rlax("check", MAXTEXT, *model)
    warning = "load_parameters_path has decoder.layers_1.mlp.wi_0.kernel and 8 more, which the"
    assert result.exit_code == 0 and warning in result.stdout


def test_an_empty_path_and_one_at_the_root_are_no_conversions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "converted.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert home_of("0/items") == Path() and home_of("") is None and home_of("/items") is None


def test_without_base_yml_no_array_would_be_divided(
    converted: dict[bool, Path], tmp_path: Path
) -> None:
    """A converted model as ``base_config`` leads to it; one that does not is rejected."""
    run = tmp_path / "run.yml"
    rlax_keys = merged(MAXTEXT, ())["rlax"]
    run.write_text(json.dumps({"base_config": f"{converted[True]}/model.yml", "rlax": rlax_keys}))
    small = ("hardware=cpu", "per_device_batch_size=16", "max_target_length=16")
    rules = dict(load_to_check(resolve(run, small)).logical_axis_rules)
    assert "fsdp" in rules["embed"] and "tensor" in rules["mlp"]
    alone = tmp_path / "model.yml"
    text = (converted[True] / "model.yml").read_text()
    alone.write_text(text.replace("base_config: base.yml\n", ""))
    run.write_text(json.dumps({"base_config": "model.yml", "rlax": rlax_keys}))
    with pytest.raises(ConfigError, match=r"base_config: must lead to MaxText's base.yml"):
        load_to_check(resolve(run, small))
