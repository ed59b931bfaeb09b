"""Sources that ``rlax convert`` rejects, each with one message, and with nothing written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
from command_line import rlax
from rlax_maxtext.trainer import _notes
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from maxtext_overrides.models import convert
from maxtext_overrides.models.huggingface_config import architecture
from maxtext_overrides.models.safetensors_directory import SafetensorsDirectory
from maxtext_overrides.models.tensors import check_tensors
from rlax_plugin.base.errors import ConfigError

_LAYER = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_models.write("llama", tmp_path / "source")


def config(**changes: Any) -> Callable[[Path], None]:
    """Changes keys of config.json; Ellipsis removes one."""

    def change(source: Path) -> None:
        content = json.loads((source / "config.json").read_text()) | changes
        kept = {key: value for key, value in content.items() if value is not ...}
        (source / "config.json").write_text(json.dumps(kept))

    return change


def tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    """Changes the weights."""

    def write(source: Path) -> None:
        held = load_file(source / "model.safetensors")
        change(held)
        save_file(held, source / "model.safetensors")

    return write


def sharded(source: Path, change: Callable[[dict[str, str]], object] = lambda files: None) -> None:
    """Divides the weights among two files, and changes what the index says of them."""
    held = load_file(source / "model.safetensors")
    names = sorted(held)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, those in parts.items():
        save_file({name: held[name] for name in those}, source / file)
    index = {name: file for file, those in parts.items() for name in those}
    change(index)
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (source / "model.safetensors").unlink()


def truncated(source: Path) -> None:
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_a_shard(source: Path) -> None:
    sharded(source)
    (source / "b.safetensors").unlink()


def naming_a_stranger(source: Path) -> None:
    sharded(source, lambda files: files.update({"model.strange": "a.safetensors"}))


def leaving_one_out(source: Path) -> None:
    sharded(source, lambda files: files.pop(_LAYER))


def naming_another_place(source: Path) -> None:
    sharded(source, lambda files: files.update({_LAYER: "../elsewhere.safetensors"}))


def only_pickles(source: Path) -> None:
    (source / "model.safetensors").rename(source / "pytorch_model.bin")


def no_json(source: Path) -> None:
    (source / "config.json").write_text("{'hidden_size': 64}")


def twice(source: Path) -> None:
    text = (source / "config.json").read_text()
    (source / "config.json").write_text('{"rms_norm_eps": 1e-5, ' + text.lstrip().removeprefix("{"))


def endless(source: Path) -> None:
    text = (source / "config.json").read_text()
    (source / "config.json").write_text(text.replace("1e-06", "1e400"))


def no_config(source: Path) -> None:
    (source / "config.json").unlink()


def large_tokenizer(source: Path) -> None:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_tokens([f"added{number}" for number in range(9)])
    tokenizer.save(str(source / "tokenizer.json"))


def as_int8(held: dict[str, np.ndarray]) -> None:
    held[_LAYER] = held[_LAYER].astype(np.int8)


def linked(name: str) -> Callable[[Path], None]:
    """Puts a link to a secret in the place of a file."""

    def link(source: Path) -> None:
        secret = source.with_name("secret")
        secret.write_text("token")
        (source / name).unlink(missing_ok=True)
        (source / name).symlink_to(secret)

    return link


def only_a_linked_template(source: Path) -> None:
    (source / "tokenizer.json").unlink()
    linked("chat_template.jinja")(source)


REJECTED: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncated, "model.safetensors': is truncated"),
    "no shard": (without_a_shard, "b.safetensors': is missing, but .*index.json names it"),
    "index has more": (naming_a_stranger, "a.safetensors': lacks the tensor model.strange"),
    "index has less": (leaving_one_out, f"has the tensor {_LAYER}, which .* does not say"),
    "index leads away": (naming_another_place, "must be the name of one beside it"),
    "pickles": (only_pickles, r"has neither .*\.bin files are not read"),
    "missing tensor": (tensors(lambda held: held.pop(_LAYER)), f"lacks a tensor .*{_LAYER}"),
    "strange tensor": (
        tensors(lambda held: held.update({"model.layers.0.mlp.gate_proj.bias": np.ones(96)})),
        "has a tensor that LlamaForCausalLM does not have: model.layers.0.mlp.gate_proj.bias",
    ),
    "integers": (tensors(as_int8), f"{_LAYER} has the dtype I8"),
    "contradicting sizes": (
        config(num_key_value_heads=1),
        r"k_proj.weight has shape \[32, 64\], but \[16, 64\] follows from the model's config$",
    ),
    "more layers": (
        config(num_hidden_layers=3),
        "lacks 9 tensors of LlamaForCausalLM: .*layers.2.* and 6 more$",
    ),
    "tied": (
        config(tie_word_embeddings=True),
        r"says tie_word_embeddings, but lm_head.weight differs",
    ),
    "no width of a head": (
        config(architectures=["Qwen2ForCausalLM"], model_type="qwen2", head_dim=None),
        "head_dim in .*: is null, and transformers makes no Qwen2ForCausalLM of that: leave it out",
    ),
    "endless layers": (config(num_hidden_layers=10**9), "num_hidden_layers in .* at most 1000"),
    "families": (config(architectures=["A", "B"]), "the name of one architecture"),
    "no JSON": (no_json, "config.json': is not JSON"),
    "said twice": (twice, "config.json': is not JSON: the key rms_norm_eps appears twice"),
    "endless": (endless, "config.json': is not JSON: 1e400 is no finite number"),
    "no config": (no_config, "': has no config.json$"),
    "no size": (config(hidden_size=...), "hidden_size in .*: is missing"),
    "no number": (config(hidden_size="64"), "config.json': is no config of .*expected int"),
    "heads": (config(num_key_value_heads=3), "num_key_value_heads in .* = 3: must divide the 4"),
    "odd heads": (config(head_dim=15), "config.json': is no config of .*requires an even"),
    "window": (
        # What transformers leaves out has its default, which the longest sequence exceeds.
        config(
            architectures=["MistralForCausalLM"], model_type="mistral", max_position_embeddings=8192
        ),
        "sliding_window in .* = 4096: sliding windows are not supported",
    ),
    "yarn": (
        config(rope_parameters={"rope_theta": 1e4, "rope_type": "yarn", "factor": 2.0}),
        "rope_type must be default, linear or llama3",
    ),
    "llama 3 of other lengths": (
        config(
            rope_parameters={
                "rope_theta": 1e4,
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 4096,
            }
        ),
        "llama3 scaling only with low_freq_factor 1, .* original_max_position_embeddings 8192",
    ),
    "other class": (config(model_type="mistral"), "model_type in .* = 'mistral': must be llama"),
    "unknown family": (
        config(architectures=["DeepseekV3ForCausalLM"]),
        "= 'DeepseekV3ForCausalLM': is not supported; supported are LlamaForCausalLM, ",
    ),
    "theta": (config(rope_parameters={"rope_theta": 1e4 + 0.5}), "must be a whole number"),
    "linked config": (linked("config.json"), "config.json is a link to '.*/secret', outside"),
    "linked template": (only_a_linked_template, "chat_template.jinja is a link to"),
    "tokenizer": (large_tokenizer, "ids up to 104, but the model has only 96 tokens"),
}


@pytest.mark.parametrize(("change", "message"), REJECTED.values(), ids=REJECTED)
def test_a_source_is_rejected(change: Callable[[Path], None], message: str, source: Path) -> None:
    change(source)
    with pytest.raises(ConfigError, match=message) as caught:
        convert.examine(source, "float32", True)
    assert "\n" not in str(caught.value)


def test_weights_may_be_links(source: Path) -> None:
    parameters = convert.examine(source, "float32", True).parameters
    weights = (source / "model.safetensors").rename(source.with_name("weights"))
    (source / "model.safetensors").symlink_to(weights)
    assert convert.examine(source, "float32", True).parameters == parameters


def test_nothing_is_written_of_what_is_rejected(source: Path, tmp_path: Path) -> None:
    truncated(source)
    result = rlax("convert", str(source), "--out", str(tmp_path / "new" / "out"))
    assert result.exit_code == 2 and result.stderr.count("error: ") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_shards_hold_the_same_model(source: Path) -> None:
    whole = load_file(source / "model.safetensors")
    sharded(source)
    found = SafetensorsDirectory(source)
    assert found.shapes == {name: tensor.shape for name, tensor in whole.items()}
    for name, tensor in whole.items():
        np.testing.assert_array_equal(found.read(name), tensor)


def test_float64_is_rounded_with_a_note(source: Path) -> None:
    def doubled(held: dict[str, np.ndarray]) -> None:
        for name in ("model.norm.weight", "model.embed_tokens.weight"):
            held[name] = held[name].astype(np.float64)

    assert SafetensorsDirectory(source).doubles == []
    tensors(doubled)(source)
    found = convert.examine(source, "float32", True)
    assert sorted(found.source.doubles) == ["model.embed_tokens.weight", "model.norm.weight"]
    assert (
        "model.embed_tokens.weight and 1 more have float64 values, which are rounded to float32"
        in ([*_notes(found)])
    )


def test_a_whole_file_is_read_whatever_an_old_index_says(source: Path) -> None:
    """transformers saves in shards, then whole: the index stays, its shards are removed."""
    whole = {name: tensor + 1 for name, tensor in load_file(source / "model.safetensors").items()}
    sharded(source)
    (source / "a.safetensors").unlink()
    save_file(whole, source / "model.safetensors")
    found = SafetensorsDirectory(source)
    for name, tensor in whole.items():
        np.testing.assert_array_equal(found.read(name), tensor)


def test_an_adapter_beside_the_weights_is_refused(source: Path) -> None:
    (source / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has adapter_config\.json: convert its base"):
        SafetensorsDirectory(source)


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path: Path) -> None:
    source = tiny_models.write("llama_tied", tmp_path / "source")
    content = json.loads((source / "config.json").read_text())
    tied = architecture(content, source)
    twice = tensors(lambda held: held.update({"lm_head.weight": held["model.embed_tokens.weight"]}))
    twice(source)
    check_tensors(SafetensorsDirectory(source), tied)
    tensors(lambda held: held.update({"lm_head.weight": held["lm_head.weight"] + 1}))(source)
    with pytest.raises(ConfigError, match=r"lm_head\.weight differs from model\.embed_tokens"):
        check_tensors(SafetensorsDirectory(source), tied)


def test_all_reasons_are_named_at_once(source: Path) -> None:
    config(mlp_bias=True, attention_bias=True, dual_chunk_attention_config={"chunk_size": 4})(
        source
    )
    with pytest.raises(ConfigError) as caught:
        convert.examine(source, "float32", True)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for key in ("mlp_bias in ", "attention_bias in ", "dual_chunk_attention_config in "):
        assert sum(line.startswith(key) for line in lines) == 1, lines


def test_a_name_of_the_hub_is_refused_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    result = rlax("convert", "Qwen/Qwen3-0.6B", "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B" in " ".join(result.stderr.split())
