"""A directory of PEFT is the start of a training, and comes out of it again."""

import json
import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import peft_directories as directories
import pytest
import tiny_models
from flax import nnx
from peft_directories import LORA
from safetensors.numpy import load_file, save_file
from tiny_loop import Recorder, configure, train

from maxtext_overrides.adapters import is_adapter
from maxtext_overrides.config.memory import abstract_model
from maxtext_overrides.models import convert, peft
from maxtext_overrides.models.forward import EXACT
from maxtext_overrides.models.reading import HeldWeights
from maxtext_overrides.trainer import adapter_files
from maxtext_overrides.variables import published
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.loading import merged

FAMILY = "llama3"  # whose heads are reordered


class Looked(Exception):
    """The logits are known: nothing needs to be trained."""


class Looking(Recorder):
    def on_start(self, loop):
        super().on_start(loop)
        raise Looked


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A converted model with its adapters in a directory of PEFT."""
    return made(tmp_path_factory.mktemp("peft"), FAMILY)


def made(directory, family):
    source, home = tiny_models.write(family, directory / "source"), directory / "home"
    home.mkdir()
    convert.examine(source, "float32", True).write(home, home, lambda *_: None)
    tensors = directories.tensors(family)
    return SimpleNamespace(
        directory=directory,
        source=source,
        tensors=tensors,
        path=str(directories.write(directory / "adapters", tensors)),
        keys=keys_of(home),
    )


def keys_of(home):
    keys = merged(home / "model.yml", ()) | EXACT
    return {key: value for key, value in keys.items() if key != "base_config"}


def logits(tmp_path, keys, **overrides):
    looking = Looking(looks=True)
    argv = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    with pytest.raises(Looked):
        train(tmp_path, *argv, recorder=looking, **overrides)
    return looking.first_logits, looking.weights[0]


@pytest.mark.parametrize("family", [FAMILY, "gemma2_other"])  # whose queries are rescaled
def test_it_is_a_start_and_comes_back(base, tmp_path, tmp_path_factory, family):
    if family != FAMILY:
        base = made(tmp_path_factory.mktemp("peft"), family)
    source, home = tiny_models.write(family, tmp_path / "source"), tmp_path / "home"
    whole = directories.merged(family, base.tensors)
    save_file(whole, source / "model.safetensors", {"format": "pt"})
    home.mkdir()
    convert.examine(source, "float32", True).write(home, home, lambda *_: None)
    expected, _ = logits(tmp_path, keys_of(home))
    lora = LORA | {"lora_restore_path": base.path}
    found, weights = logits(tmp_path, base.keys, lora=lora, enable_checkpointing=True)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    out = tmp_path / "out"
    out.mkdir()
    config = configured(base, tmp_path, {})
    assert peft.write(out, config, HeldWeights(dict(weights)), "float32") == [
        "adapter_model.safetensors"
    ]
    again = load_file(out / "adapter_model.safetensors")
    assert again.keys() == base.tensors.keys()
    for name, tensor in base.tensors.items():
        rounded = 1e-6 if family != FAMILY and "q_proj.lora_B" in name else 0
        np.testing.assert_allclose(again[name], tensor, rtol=rounded, err_msg=name)
    content = json.loads((out / "adapter_config.json").read_text())
    assert (content["r"], content["lora_alpha"], content["peft_type"]) == (4, 6, "LORA")
    assert content["base_model_name_or_path"] == str(base.source)
    names = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert content["target_modules"] == names
    assert json.loads((tmp_path / "tiny/base.json").read_text())["alpha"] == 6


def test_modules_of_some_layers_are_named_by_their_paths(base, tmp_path):
    path = "decoder/layers_1/self_attention/(query|value)|decoder/layers_./mlp/wo"
    config = configured(base, tmp_path, {"lora_module_path": path}, scan_layers=False)
    weights = {}
    for kernel, inputs, outputs in (
        ("decoder.layers_1.self_attention.query", 64, 64),
        ("decoder.layers_0.mlp.wo", 96, 64),
        ("decoder.layers_1.mlp.wo", 96, 64),
    ):
        weights[f"{kernel}.kernel_lora_a"] = np.ones((inputs, 4), np.float32)
        weights[f"{kernel}.kernel_lora_b"] = np.ones((4, outputs), np.float32)
    peft.write(tmp_path, config, HeldWeights(weights), "bfloat16")
    found = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert found == ["down_proj", "model.layers.1.self_attn.q_proj"]


@pytest.fixture(scope="module")
def read(base):
    """Reads a directory of PEFT as adapters of the model."""
    config = configured(base, base.directory, {})
    state = nnx.state(abstract_model(config, "train"))
    adapters = {n: tuple(a.shape) for n, a in published(state).items() if is_adapter(n)}
    return lambda path: peft.read(config, str(path), adapters)


def configured(base, tmp_path, lora, **keys):
    argv = [f"{key}={json.dumps(value)}" for key, value in base.keys.items()]
    return configure(tmp_path, *argv, lora=LORA | lora, **keys)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("use_rslora", True, "must have use_rslora: false in adapter_config.json, and has true"),
        ("use_dora", True, "use_dora: false"),
        ("use_dora", 0, "use_dora: false in adapter_config.json, and has 0"),
        ("bias", "lora_only", 'bias: "none"'),
        ("fan_in_fan_out", True, "fan_in_fan_out: false"),
        ("modules_to_save", ["lm_head"], "modules_to_save: null"),
        ("layers_to_transform", [0], "layers_to_transform: null"),
        ("rank_pattern", {"q_proj": 8}, "rank_pattern: {}"),
        ("alpha_pattern", {"q_proj": 8}, "alpha_pattern: {}"),
        ("init_lora_weights", "pissa", "init_lora_weights: true"),
        ("task_type", "SEQ_CLS", 'task_type: "CAUSAL_LM"'),
        ("peft_type", "LOHA", 'peft_type: "LORA"'),
        ("trainable_token_indices", [1], "trainable_token_indices: null"),
        ("of_a_later_peft", False, "of_a_later_peft: null in adapter_config.json, and has false"),
        ("exclude_modules", ["q_proj"], "exclude_modules: null"),
        ("target_modules", ["q_proj", "v_proj", "o_proj"], "must match model.layers.0.self_attn.k"),
        ("target_modules", ["proj", "q_proj"], "must match model.layers.0.self_attn.k_proj"),
        ("target_modules", r".*\.(q|k|v|o)_proj", "must match model.layers.0.mlp.gate_proj"),
        (
            "target_modules",
            "(",
            'q_proj, whose tensors are in adapter_model.safetensors, and is "("',
        ),
        ("target_modules", "(([a-z_.0-9])+)+q", "must match model.layers.0.self_attn."),  # slow
        ("target_modules", None, "and is null"),
        ("r", "4", "r in adapter_config.json must be a number above 0"),
    ],
)
def test_what_peft_would_compute_otherwise_is_rejected_by_key(
    base, read, tmp_path, key, value, reason
):
    path = directories.write(tmp_path / "adapters", base.tensors, **{key: value})
    with pytest.raises(ConfigError, match=re.escape(reason)) as error:
        read(path)
    assert error.value.key == "lora.lora_restore_path"


@pytest.mark.parametrize("targets", ["all-linear", r".*\.layers\.\d\..*_proj"])
def test_target_modules_may_be_a_pattern(base, read, tmp_path, targets):
    read(directories.write(tmp_path / "adapters", base.tensors, target_modules=targets))


def changed(name, change):
    def apply(tensors):
        tensors[name] = change(tensors[name])

    return apply


_Q = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: held.pop(_Q), r"lacks a tensor of the modules .* matches: .*q_proj.lora_B"),
        (
            lambda held: held.update(
                {_Q.replace("lora_B.weight", "lora_magnitude_vector"): held[_Q]}
            ),
            "has a tensor that the modules .* does not have: .*lora_magnitude_vector",
        ),
        (changed(_Q, lambda x: x[:32].copy()), r"has shape \[32, 4\], but \[64, 4\] follows"),
        (changed(_Q, np.float64), "q_proj.lora_B.weight is float64, which would be rounded"),
        (changed(_Q, np.int32), "has the dtype I32; supported"),
        (changed(_Q, lambda x: x * np.float32(np.nan)), "q_proj.lora_B.weight are not finite"),
    ],
)
def test_other_tensors_are_rejected(base, read, tmp_path, change, reason):
    tensors = dict(base.tensors)
    change(tensors)
    path = directories.write(tmp_path / "adapters", tensors)
    with pytest.raises(ConfigError, match=rf"^lora\.lora_restore_path = .*{reason}"):
        read(path)


def test_adapters_are_read_in_float32_from_a_smaller_dtype(base, read, tmp_path):
    small = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in base.tensors.items()}
    found = read(directories.write(tmp_path / "adapters", small))
    whole = read(base.path)
    for name, array in found.items():
        rounded = whole[name].astype(ml_dtypes.bfloat16).astype(np.float32)
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, rounded, err_msg=name)


def test_the_config_must_have_rank_alpha_and_base_of_the_directory(base, read, tmp_path):
    for lora, keys, error in (
        ({"lora_rank": 8}, {}, r"^lora\.lora_rank = 8: must be 4, r of .*config\.json"),
        ({}, {"load_parameters_path": ""}, r"^load_parameters_path = '': must be set: the base of"),
        ({"lora_alpha": 8.0}, {}, r"^lora\.lora_alpha = 8\.0: must be 6, lora_alpha of"),
    ):
        lora["lora_restore_path"] = base.path
        config = configured(base, tmp_path, lora, **keys)
        shapes = published(nnx.state(abstract_model(config, "train")))
        with pytest.raises(ConfigError, match=error):
            adapter_files.check_first_adapters(config, {n: a.shape for n, a in shapes.items()})


@pytest.mark.parametrize("text", [None, "{", '{"architectures": ["LlamaForCausalLM"]}'])
def test_a_base_without_its_config_is_taken_and_one_with_a_damaged_one_named(base, tmp_path, text):
    home = tmp_path / "home"
    (home / "huggingface").mkdir(parents=True)
    (home / "converted.json").write_text("{}")
    if text is not None:
        (home / "huggingface/config.json").write_text(text)
    config = configured(base, tmp_path, {}, load_parameters_path=str(home / "0/items"))
    model = published(nnx.state(abstract_model(config, "train")))
    shapes = {name: tuple(a.shape) for name, a in model.items() if is_adapter(name)}
    if text is None:
        peft.check(config, base.path, shapes)
        return
    with pytest.raises(ConfigError, match=rf"^load_parameters_path = .*{home}/huggingface/config"):
        peft.check(config, base.path, shapes)


def test_gemma_2_needs_a_converted_base(base, tmp_path):
    source = tiny_models.write("gemma2_other", tmp_path / "source")
    keys = convert.examine(source, "float32", True).keys | EXACT
    config = configured(SimpleNamespace(keys=keys), tmp_path, {}, load_parameters_path="/x/items")
    with pytest.raises(ConfigError, match=r"^load_parameters_path = '/x/items': .* of Gemma 2"):
        peft.check(config, base.path, {"x.kernel_lora_a": (64, 4), "x.kernel_lora_b": (4, 64)})


@pytest.mark.parametrize("alpha", [22.627416997969522, 10**400])
def test_an_alpha_is_asked_for_by_all_its_digits(base, read, tmp_path, alpha):
    path = directories.write(tmp_path / "adapters", base.tensors, lora_alpha=alpha)
    with pytest.raises(ConfigError, match=rf"^lora\.lora_alpha = 6\.0: must be {alpha!r:.100}, "):
        read(path)


def test_pickled_adapters_are_not_read(base, read, tmp_path):
    path = directories.write(tmp_path / "adapters", base.tensors)
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"has no adapter_model\.safetensors; \.bin files"):
        read(path)
