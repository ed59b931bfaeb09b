"""``rlax check`` compares the checkpoint that training starts from with the config's model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_models
from command_line import rlax
from small_tokenizers import byte_level

from rlax_plugin.commands.convert import convert
from rlax_plugin.config.loading import merged

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


def checked(directory: Path, *overrides: str) -> tuple[int, str]:
    keys = merged(directory / "model.yml", ())
    model = (f"{key}={json.dumps(value)}" for key, value in keys.items())
    result = rlax("check", MAXTEXT, *model, *overrides)
    return result.exit_code, result.stderr.replace(str(directory), "DIR")


PLACE = "is not a checkpoint of MaxText; did you mean DIR/0/items?"
OTHER = "error: load_parameters_path = 'DIR/0/items': holds the weights of another model: "


def test_check_takes_what_maxtext_loads(converted: dict[bool, Path]) -> None:
    for scanned, directory in converted.items():
        assert checked(directory) == (0, ""), scanned
    # MaxText also takes the directory of the step.
    assert checked(converted[True], f"load_parameters_path={converted[True]}/0") == (0, "")


@pytest.mark.parametrize("fast", [(), ("--fast",)])
def test_what_is_no_checkpoint_is_rejected(
    converted: dict[bool, Path], fast: tuple[str, ...]
) -> None:
    at = converted[True]
    for place in ("", "/huggingface"):
        code, message = checked(at, f"load_parameters_path={at}{place}", *fast)
        assert (code, message) == (2, f"error: load_parameters_path = 'DIR{place}': {PLACE}\n")
    nowhere = f"load_parameters_path={at}/0/items/ocdbt.process_0/d"
    assert "those of MaxText end with /items" in checked(at, nowhere, *fast)[1]


@pytest.mark.parametrize("fast", [(), ("--fast",)])
@pytest.mark.parametrize("scanned", [True, False])
def test_layers_must_be_as_the_checkpoint_has_them(
    converted: dict[bool, Path], scanned: bool, fast: tuple[str, ...]
) -> None:
    code, message = checked(converted[scanned], f"scan_layers={not scanned}", *fast)
    right = f"must be {str(scanned).lower()}, with which load_parameters_path = DIR/0/items"
    assert (code, message) == (2, f"error: scan_layers = {not scanned}: {right} was written\n")


@pytest.mark.parametrize(
    ("scanned", "override", "expected"),
    [
        (
            True,
            "base_emb_dim=32",
            "decoder.decoder_norm.scale has shape [64], but the model of this config has [32]; ",
        ),
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
        (
            True,
            "vocab_size=200",
            "decoder.logits_dense.kernel has shape [64, 96], but the model of this config has "
            "[64, 200]; ",
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


def test_ignored_layers_are_a_warning(converted: dict[bool, Path]) -> None:
    keys = merged(converted[False] / "model.yml", ()) | {"base_num_decoder_layers": 1}
    model = (f"{key}={json.dumps(value)}" for key, value in keys.items())
    result = rlax("check", MAXTEXT, *model)
    warning = "load_parameters_path has decoder.layers_1.mlp.wi_0.kernel and 8 more, which the"
    assert result.exit_code == 0 and warning in result.stdout
