"""``rlax export``: what may be named, what comes out of it, and what is refused."""

import dataclasses
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tiny_models
from rlax_maxtext.exporting import converter
from rlax_orbax.store import OrbaxStore
from rlax_vllm.model import model_of
from rlax_vllm.options import VllmConfig
from safetensors.numpy import load_file
from tiny_loop import TINY, VOCAB, Recorder, train

from maxtext_overrides.config.loading import load_to_check
from maxtext_overrides.models.huggingface_config import architecture
from maxtext_overrides.models.maxtext_keys import maxtext_keys, of_maxtext
from maxtext_overrides.models.rules import variables
from maxtext_overrides.models.safetensors_directory import SafetensorsDirectory
from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import TensorSpec, WeightVersion
from rlax_plugin.config.loading import merged, resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.testing.builders import make_version
from rlax_plugin.tools.commands.convert import convert
from rlax_plugin.tools.commands.export import export, find_source
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.kept_versions import record_versions, versions_to_json

GIB = 2**30


class Run:
    """A run of one step whose model was never converted, and versions 0 to 2 of it."""

    def __init__(self, directory: Path):
        self.tokenizer = tiny_models.write_tokenizer(VOCAB, directory / "tokenizer")
        self.argv = (
            f"base_output_directory={directory}",
            "normalize_embedding_logits=false",
            f"tokenizer_path={self.tokenizer}",
            "enable_checkpointing=true",
        )
        self.recorder = Recorder(stop_after=1, looks=True)
        train(directory, *self.argv, recorder=self.recorder)
        self.path = directory / "tiny"
        self.files = RunFiles(self.path)
        self.files.put("config.yml", resolve(TINY, self.argv).to_yaml())
        weights = dict(self.recorder.weights)
        weights[2] = {name: np.asarray(array) * 2 for name, array in weights[1].items()}
        self.versions = [self.published(step, arrays) for step, arrays in weights.items()]
        self.list(2)

    def published(self, step, arrays) -> WeightVersion:
        path = str(self.path / "weights" / f"{step:08d}")
        OrbaxStore().save(path, arrays)
        prints = fingerprint_numpy(arrays)
        tensors = {
            name: TensorSpec(tuple(a.shape), a.dtype.name, int(prints[name]))
            for name, a in arrays.items()
        }
        return make_version(step, path, tensors)

    def list(self, newest: int) -> None:
        kept = [version for version in self.versions if version.version <= newest]
        record_versions(self.files, versions_to_json(kept, []))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


def exported(target: object, out: Path, *argv: str, dtype="float32", most_bytes=GIB) -> str:
    what, _ = export(
        find_source(str(target), None, argv), str(out), dtype=dtype, most_bytes=most_bytes
    )
    return what


def embedding(directory: Path) -> np.ndarray:
    return SafetensorsDirectory(directory).read("model.embed_tokens.weight")


class Looked(Exception):
    """The logits are known: nothing needs to be trained."""


class Looking(Recorder):
    def on_start(self, loop):
        super().on_start(loop)
        raise Looked


@pytest.mark.parametrize("divides", [False, True])
def test_a_model_that_was_never_converted_comes_back(run: Run, tmp_path, divides: bool) -> None:
    """Its block keeps 1 / sqrt(head width) in the query kernel; that of converted models does not.

    It may also divide its logits by sqrt(width), as the built-in model does. What is exported has
    neither; tests/maxtext/test_families.py compares with transformers.
    """
    out, again = tmp_path / "out", tmp_path / "again"
    exported(f"{run.path}@0", out, f"normalize_embedding_logits={str(divides).lower()}")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["eos_token_id"], config["dtype"]) == ([1], "float32")
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [1], "pad_token_id": 1}
    kernel = np.asarray(run.recorder.weights[0]["decoder.layers.self_attention.query.kernel"])
    query = SafetensorsDirectory(out).read("model.layers.1.self_attn.q_proj.weight")
    np.testing.assert_array_equal(query, 4 * kernel[:, 1].reshape(32, 32).T)  # heads are 16 wide

    convert(str(out), str(again), dtype="float32", scan_layers=True, trainer="maxtext")
    keys = merged(again / "model.yml", ())
    assert (keys.pop("base_config"), keys["decoder_block"]) == ("base.yml", "qwen2")
    looking = Looking(looks=True)
    with pytest.raises(Looked):
        train(tmp_path, *(f"{k}={json.dumps(v)}" for k, v in keys.items()), recorder=looking)
    expected = run.recorder.first_logits / (np.sqrt(32) if divides else 1)
    np.testing.assert_allclose(looking.first_logits, expected, atol=1e-5)


def test_a_run_without_adapters_has_none_for_peft(run: Run, tmp_path) -> None:
    source, out = find_source(f"{run.path}@0", None, ()), tmp_path / "out"
    with pytest.raises(ConfigError, match=r"^--peft = True: is of adapters, and this run has none"):
        export(source, str(out), dtype="float32", most_bytes=GIB, peft=True)
    assert not out.exists()


def test_without_a_path_the_tokenizer_of_the_prompts_is_exported(run: Run, tmp_path) -> None:
    def reading(tokenizer: object) -> str:
        return f"rlax.prompt_source={json.dumps({'name': 'jsonl', 'tokenizer': str(tokenizer)})}"

    exported(f"{run.path}@1", tmp_path / "out", "tokenizer_path=", reading(run.tokenizer))
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    too_large = r"^rlax.prompt_source.tokenizer = 'bytes': has ids up to 261, and the model has 64"
    with pytest.raises(ConfigError, match=too_large):
        exported(f"{run.path}@1", tmp_path / "bytes", "tokenizer_path=", reading("bytes"))


def test_a_run_gives_its_newest_weights(run: Run, tmp_path) -> None:
    weights = {step: a["token_embedder.embedding"] for step, a in run.recorder.weights.items()}
    assert exported(run.path, tmp_path / "newest") == f"version 2 of {run.path}"
    np.testing.assert_array_equal(embedding(tmp_path / "newest"), 2 * np.asarray(weights[1]))
    run.list(newest=1)  # of the same step a checkpoint has the numbers that are trained
    try:
        assert exported(run.path, tmp_path / "last") == f"the checkpoint of step 1 of {run.path}"
    finally:
        run.list(newest=2)
    np.testing.assert_array_equal(embedding(tmp_path / "last"), weights[1])
    exported(f"{run.path}@0", tmp_path / "first")
    np.testing.assert_array_equal(embedding(tmp_path / "first"), weights[0])
    exported(f"{run.path}/checkpoints/0", tmp_path / "named")
    np.testing.assert_array_equal(embedding(tmp_path / "named"), weights[1])


def test_bfloat16_in_several_files(run: Run, tmp_path) -> None:
    out = tmp_path / "new" / "out"
    exported(f"{run.path}@1", tmp_path / "float32")
    exported(f"{run.path}@1", out, dtype="bfloat16", most_bytes=12_000)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert files == [f"model-{n:05d}-of-00005.safetensors" for n in range(1, 6)]
    whole, parts = SafetensorsDirectory(tmp_path / "float32"), SafetensorsDirectory(out)
    assert whole.shapes == parts.shapes
    for name in whole.shapes:
        rounded = whole.read(name).astype(parts.read(name).dtype)
        np.testing.assert_array_equal(parts.read(name), rounded)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 2 * 22_688}
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


REFUSED = {
    "version": ("tiny@9", (), r"^--version = 9: does not exist; available: 0, 1, 2"),
    "checkpoint": ("tiny/checkpoints/7", (), r"no such checkpoint; of these .* some: 1 \(0\)"),
    "tokenizer": ("tiny@1", ("tokenizer_path=",), r"^tokenizer_path: is not set.*not known: give"),
    "large tokenizer": ("tiny@1", ("vocab_size=60",), r"^tokenizer_path = .* up to 63.*has 60"),
    "model before tokenizer": (
        "tiny@1",
        ("tokenizer_path=", "trainable_position_size=16"),
        r"^trainable_position_size = 16: must be -1",
    ),
    "family": ("tiny@1", ("decoder_block=gemma",), r"^decoder_block = 'gemma': "),
    "other model": (
        "tiny@1",
        ("base_num_decoder_layers=3",),
        r"^weights: decoder.layers.pre_.*: must be \[32, 3\] by MaxText's keys, and is \[32, 2\]",
    ),
    "more than the model": (
        "tiny/checkpoints/0",
        ("logits_via_embedding=false", "decoder_block=qwen3"),
        r"^weights: decoder.logits_dense.kernel: must be .* and is not in it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_error_and_nothing_written(case: str, run: Run, tmp_path) -> None:
    target, argv, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        exported(run.path.parent / target, tmp_path / "out", *argv)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_never_overwritten(run: Run, tmp_path) -> None:
    for name in ("file", "directory"):
        (tmp_path / "directory").mkdir(exist_ok=True)
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match=r"^--out = .*: exists already"):
            exported(run.path, tmp_path / name)
    with pytest.raises(ConfigError, match=r"^--out = .*file/out.*file is a file"):
        exported(run.path, tmp_path / "file" / "out")


def test_weights_that_are_not_what_was_published_are_not_exported(run: Run, tmp_path) -> None:
    version = run.versions[1]
    name = "decoder.decoder_norm.scale"
    wrong = dataclasses.replace(version.tensors[name], fingerprint=1)
    tensors = {**version.tensors, name: wrong}
    damaged = make_version(1, version.paths[0], tensors, version.canary)
    record_versions(run.files, versions_to_json([damaged], []))
    try:
        with pytest.raises(RlaxError, match=r"norm.scale' has fingerprint .* but 0x00000001 was"):
            exported(f"{run.path}@1", tmp_path / "out")
    finally:
        run.list(newest=2)
    chunk = max((run.path / "checkpoints" / "0" / "items" / "d").iterdir(), key=_size)
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    try:
        with pytest.raises(RlaxError, match="no parameters that can be read"):
            exported(f"{run.path}/checkpoints/0", tmp_path / "out")
    finally:
        chunk.write_bytes(whole)
    assert list(tmp_path.iterdir()) == []


def _size(path: Path) -> int:
    return path.stat().st_size


def test_a_converted_version_is_what_is_exported(run: Run, tmp_path) -> None:
    source = find_source(f"{run.path}@1", None, ()).config
    conversion = converter(load_to_check(source))
    arrays, tensors = run.recorder.weights[1], dict[str, np.ndarray]()
    (out := tmp_path / "converted").mkdir()
    conversion(arrays, out, tensors.__setitem__)
    exported(f"{run.path}@1", tmp_path / "exported")
    whole = load_file(tmp_path / "exported" / "model.safetensors")
    written = load_file(out / "model.safetensors")
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    assert whole.keys() == written.keys() == tensors.keys()
    for name, tensor in whole.items():
        assert written[name].tobytes() == tensors[name].tobytes() == tensor.tobytes()

    rounded = {
        name: np.asarray(array).astype(ml_dtypes.bfloat16) if "kernel" in name else array
        for name, array in arrays.items()
    }
    (mixed := tmp_path / "mixed").mkdir()
    conversion(rounded, mixed, tensors.__setitem__)
    kinds = {name.split(".", 3)[-1]: tensor.dtype.name for name, tensor in tensors.items()}
    assert kinds["mlp.down_proj.weight"] == "bfloat16"
    assert kinds["self_attn.q_proj.weight"] == "float32"  # 4 times the kernel, see above
    assert kinds["input_layernorm.weight"] == "float32"

    (none := tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"^weights: lora: is in the weights, and not in the mod"):
        conversion({**arrays, "lora": np.zeros(2, np.float32)}, none, tensors.__setitem__)
    assert not list(none.iterdir())


def test_adapters_are_added_to_a_converted_version(run: Run, tmp_path) -> None:
    """What is written is what is written of W + alpha / rank A B, in the dtype of W."""
    name, lora = "decoder.layers.mlp.wo.kernel", {"enable_lora": True, "lora_rank": 4}
    lora |= {"lora_alpha": 8.0, "lora_module_path": "decoder/layers.*/mlp/wo"}
    source = find_source(f"{run.path}@1", None, ()).config
    adapted = find_source(f"{run.path}@1", None, (f"lora={json.dumps(lora)}",)).config
    rng = np.random.default_rng(0)
    arrays = {name: np.asarray(array) for name, array in run.recorder.weights[1].items()}
    arrays[name] = arrays[name].astype(ml_dtypes.bfloat16)
    a_ilr, b_rlo = (rng.normal(size=s).astype(np.float32) for s in ((64, 2, 4), (4, 2, 32)))
    full = arrays[name] + 2 * np.einsum("ilr,rlo->ilo", a_ilr, b_rlo)
    files = []
    for config, given in (
        (adapted, {**arrays, f"{name}_lora_a": a_ilr, f"{name}_lora_b": b_rlo}),
        (source, {**arrays, name: full.astype(ml_dtypes.bfloat16)}),
    ):
        (out := tmp_path / str(len(files))).mkdir()
        converter(load_to_check(config))(given, out, lambda name, tensor: None)
        files.append(load_file(out / "model.safetensors"))
    assert files[0].keys() == files[1].keys()
    for tensor, array in files[0].items():
        other = files[1][tensor]
        assert array.dtype == other.dtype, tensor
        if "down_proj" not in tensor:
            np.testing.assert_array_equal(array, other)
        else:  # the order of the sum may round the other way
            np.testing.assert_allclose(*(t.astype(np.float32) for t in (array, other)), rtol=8e-3)
    assert files[0]["model.layers.0.mlp.down_proj.weight"].dtype == ml_dtypes.bfloat16


def test_vllm_starts_with_the_model_that_versions_are_written_of(tmp_path, monkeypatch) -> None:
    """What divides the logits of a Gemma 2 is in its query kernel, whatever a file says."""
    monkeypatch.chdir(tmp_path)
    content = tiny_models.known("gemma2_other")["config"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    found = architecture(content, Path("config.json"))
    assert content["query_pre_attn_scalar"] != found.head_dim
    keys = {**maxtext_keys(found), "max_target_length": 16}
    given = resolve(TINY, [f"{key}={json.dumps(value)}" for key, value in keys.items()])
    model = model_of(VllmConfig(), BuildContext.outside_run(given.section, given))
    assert model.content["query_pre_attn_scalar"] == found.head_dim
    written = variables(of_maxtext(load_to_check(given)), True)
    assert model.shapes == {n: s for one in written for n, s in one.tensor_shapes.items()}
