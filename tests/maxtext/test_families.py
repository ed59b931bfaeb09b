"""Every Llama-shaped family: converted, compared with transformers, trained a step, exported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import transformers
import yaml
from flax import nnx
from maxtext.checkpoint_conversion.utils import hf_model_configs
from safetensors.numpy import load_file
from tiny_loop import TINY, Recorder, train

from maxtext_overrides.models import huggingface_config
from maxtext_overrides.models.rules import variables
from maxtext_overrides.models.safetensors_directory import SafetensorsDirectory
from rlax_plugin.commands.convert import convert
from rlax_plugin.commands.export import export, find_source
from rlax_plugin.config.loading import maxtext_configs, merged
from rlax_plugin.errors import ConfigError

FAMILIES = tuple(name for name in tiny_models.FAMILIES if not name.startswith("gemma"))
QUICK = ("llama_tied", "qwen2")  # the others are tried by `make test-long`
UNSCANNED = ("qwen2", "llama3")  # one with biases, one with reordered heads; the others are scanned


class Compared(Recorder):
    """Records the logits of a family's tokens under the weights that training starts from."""

    def __init__(self, family: str):
        super().__init__(stop_after=1)
        reference = tiny_models.known(family)
        self.tokens = tiny_models.tokens(reference["config"]["vocab_size"])
        self.positions = tiny_models.positions(reference["stride"])

    def on_start(self, loop):
        super().on_start(loop)
        with loop.shardings():
            model = nnx.merge(loop.graph, loop.model_state, copy=True)
            self.logits = np.asarray(
                nnx.jit(lambda m, t, p, s: m(t, p, decoder_segment_ids=s, enable_dropout=False))(
                    model, self.tokens, self.positions, np.ones_like(self.tokens)
                )
            )


def exported(checkpoint: Path, out: Path, argv: Sequence[str]) -> Path:
    source = find_source(str(checkpoint), TINY, argv)
    export(source, str(out), dtype="float32", most_bytes=2**30)
    return out


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.long) for f in FAMILIES]
)
def test_family_there_and_back(family: str, tmp_path: Path) -> None:
    source = tiny_models.write(family, tmp_path / "source")
    scanned = family not in UNSCANNED
    converted = tmp_path / "converted"
    convert(str(source), str(converted), dtype="float32", scan_layers=scanned, trainer="maxtext")
    keys = merged(converted / "model.yml", ())
    argv = [f"{key}={json.dumps(value)}" for key, value in keys.items()]

    compared = Compared(family)
    train(tmp_path, *argv, "enable_checkpointing=true", recorder=compared)
    reference = tiny_models.known(family)
    logits = compared.logits.reshape(-1, keys["vocab_size"])[:: reference["every"]]
    np.testing.assert_allclose(logits[:, reference["columns"]], reference["logits"], atol=1e-3)
    assert logits.argmax(axis=1).tolist() == reference["best"]

    # What was not trained comes out as it went in.
    before = exported(tmp_path / "converted" / "0", tmp_path / "before", argv)
    original, found_again = (load_file(d / "model.safetensors") for d in (source, before))
    assert original.keys() == found_again.keys()
    for name, tensor in original.items():
        np.testing.assert_array_equal(found_again[name], tensor)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (before / name).read_bytes() == (source / name).read_bytes()
    for name in ("config.json", "generation_config.json"):
        assert json.loads((before / name).read_text()) == json.loads((source / name).read_text())

    # What was trained comes out as the trainer has it, and every tensor has learned.
    after = exported(tmp_path / "tiny" / "checkpoints" / "0", tmp_path / "after", argv)
    trained = SafetensorsDirectory(after)
    path = source / "config.json"
    architecture = huggingface_config.architecture(huggingface_config.read(path), path)
    for variable in variables(architecture, scanned):
        again = variable.of_tensors(trained.read, np.dtype(np.float32))
        np.testing.assert_array_equal(again, compared.weights[1][variable.name])
    for name, tensor in original.items():
        assert np.any(trained.read(name) != tensor), name


# In a process of its own, as the command's is: transformers is first imported while MaxText is.
CONVERT_SMALL = """
import json, sys
from maxtext_overrides.models import named_model
from rlax_plugin.commands.convert import convert

source, out, small = sys.argv[1:]

def name(known, content, *_):
    known["gemma2-2b"] = content
    return "gemma2-2b"

named_model._name, named_model._keys = name, lambda name: json.loads(small)
convert(source, out, dtype="float32", scan_layers=False, trainer="maxtext")
"""


@pytest.mark.long
def test_a_gemma_2_is_converted_by_maxtexts_own_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_models.write("gemma2", tmp_path / "source")
    out = tmp_path / "converted"
    with pytest.raises(ConfigError, match=r"Supported are LlamaForCausalLM.*gemma2-2b"):
        convert(str(source), str(out), dtype="float32", scan_layers=False, trainer="maxtext")

    reference = tiny_models.known("gemma2")
    small = {
        **yaml.safe_load((maxtext_configs() / "models" / "gemma2-2b.yml").read_text()),
        "base_emb_dim": 64,
        "base_num_query_heads": 4,
        "base_num_kv_heads": 2,
        "base_mlp_dim": 96,
        "base_num_decoder_layers": 1,  # a pair of one with a window and one without
        "head_dim": 16,
        "vocab_size": 96,
        "sliding_window_size": 64,
    }
    argv = [sys.executable, "-c", CONVERT_SMALL, str(source), str(out), json.dumps(small)]
    subprocess.run(argv, check=True, timeout=600)
    keys = merged(out / "model.yml", ())
    compared = Compared("gemma2")
    argv = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    train(tmp_path, *argv, recorder=compared)
    logits = compared.logits.reshape(-1, 96)[:: reference["every"]]
    np.testing.assert_allclose(logits[:, reference["columns"]], reference["logits"], atol=1e-3)
    assert logits.argmax(axis=1).tolist() == reference["best"]

    config = transformers.Gemma2Config(**reference["config"])
    monkeypatch.setitem(hf_model_configs.HF_MODEL_CONFIGS, "gemma2-2b", config)
    named = ("model_name=gemma2-2b", "override_model_config=true")
    back = exported(out / "0", tmp_path / "back", (*argv, *named))
    original, found_again = (load_file(d / "model.safetensors") for d in (source, back))
    assert original.keys() == found_again.keys()
    for name, tensor in original.items():  # MaxText adds 1 to norms on the way in
        np.testing.assert_allclose(found_again[name], tensor, atol=1e-6, err_msg=name)
    content = (json.loads((d / "config.json").read_text()) for d in (source, back))
    assert next(content) == next(content)
