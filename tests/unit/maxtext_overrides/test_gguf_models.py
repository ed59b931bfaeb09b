"""A GGUF file: its tensors, its tokenizer, and what is rejected."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_gguf
import tiny_models
from gguf import GGMLQuantizationType as Kind
from sentencepiece import SentencePieceProcessor

from maxtext_overrides.models import convert, gguf_tokenizer, huggingface_config
from maxtext_overrides.models.gguf_file import GgufFile
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.config.loading import maxtext_configs


def test_the_header_and_the_tensors_are_those_of_the_original(tmp_path: Path) -> None:
    file = GgufFile(tiny_gguf.write(tmp_path / "tiny.gguf"))
    original = tiny_models.known("llama")["config"]
    expected = huggingface_config.architecture(original, tmp_path)
    assert file.architecture() == expected
    for name, tensor in tiny_gguf.tensors().items():
        np.testing.assert_array_equal(file.read(name), tensor, name)


def test_quantised_tensors_are_within_half_a_step(tmp_path: Path) -> None:
    file = GgufFile(tiny_gguf.write(tmp_path / "tiny.gguf", kind=Kind.Q8_0))
    tensor = tiny_gguf.tensors()["model.layers.1.self_attn.k_proj.weight"]
    found = file.read("model.layers.1.self_attn.k_proj.weight")
    blocks = np.abs(tensor).reshape(-1, 32).max(axis=1)
    error = np.abs(found - tensor).reshape(-1, 32).max(axis=1)
    # Half a step, and the rounding of the step itself to float16, 127 times.
    assert np.all(error <= blocks / 127 * 0.57) and error.max() > 0


def test_llama_3_1s_factors_of_positions_are_known(tmp_path: Path) -> None:
    """Those that llama.cpp's converter computes for head width 16 and base 10000."""

    class WithFactors(gguf.GGUFWriter):
        def write_header_to_file(self, *args: Any) -> None:
            # Wavelengths up to 2048 are kept, those above 8192 are divided by the factor.
            base = 10000 ** (np.arange(0, 16, 2) / 16) * 2 * np.pi
            smooth = (8192 / base - 1) / 3
            between = 1 / ((1 - smooth) / self.factor + smooth)
            factors = np.where(base < 2048, 1, np.where(base > 8192, self.factor, between))
            factors *= self.wrong
            self.add_tensor("rope_freqs.weight", factors.astype(np.float32))
            super().write_header_to_file(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", WithFactors)
        WithFactors.wrong, WithFactors.factor = 1.0, 8
        right = tiny_gguf.write(tmp_path / "right.gguf")
        WithFactors.factor = 32  # Llama 3.2
        newer = tiny_gguf.write(tmp_path / "newer.gguf")
        WithFactors.wrong = 1.1
        other = tiny_gguf.write(tmp_path / "other.gguf")
    for path, factor in ((right, 8.0), (newer, 32.0)):
        found = GgufFile(path).architecture()
        assert (found.rope, found.rope_factor) == ("llama3", factor)
    with pytest.raises(ConfigError, match="llama3 scaling only with low_freq_factor 1"):
        GgufFile(other).architecture()


def test_the_tokenizer_is_that_of_the_header(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf")
    (tmp_path / "out").mkdir()
    convert.examine(path, "float32", True).write_beside(tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out", "test")
    word = {token: index for index, token in enumerate(tiny_gguf.TOKENS)}
    # "Ġ1" is in the vocabulary, and digits are split off before anything is merged.
    expected = [word[token] for token in ("the", "Ġ", "1", "2", "Ġthe", "Ċ")]
    assert tokenizer.encode("the 12 the\n") == expected
    assert tokenizer.decode(expected) == "the 12 the\n"
    assert tokenizer.render([{"role": "user", "content": "a"}]) == [word["a"], 1]
    assert (tokenizer.stop_ids, tokenizer.pad_id, tokenizer.bos_ids) == ((1,), 1, ())
    assert tokenizer.size == len(tiny_gguf.TOKENS)


def test_a_beginning_is_added_where_the_header_says_so(tmp_path: Path) -> None:
    values = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.pre": "gpt-2"}
    path = tiny_gguf.write(tmp_path / "tiny.gguf", values=values)
    patched = path.read_bytes()
    (tmp_path / "out").mkdir()
    convert.examine(path, "float32", True).write_beside(tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out", "test")
    assert tokenizer.bos_ids == () and patched == path.read_bytes()
    # GPT-2's split keeps a space and the digits behind it together.
    word = tiny_gguf.TOKENS.index
    assert tokenizer.encode("the 12") == [word("the"), word("Ġ1"), word("2")]
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def test_a_sentencepiece_tokenizer_encodes_as_the_library_does() -> None:
    """That of Llama 2, which MaxText's package holds; all of it could stand in a GGUF's header."""
    folder = maxtext_configs().parent / "assets" / "tokenizers"
    original = SentencePieceProcessor(str(folder / "tokenizer.llama2"))
    ids = range(original.get_piece_size())
    kinds = {i: 2 for i in ids if original.is_unknown(i)}
    kinds |= {i: 3 for i in ids if original.is_control(i)}
    kinds |= {i: 6 for i in ids if original.is_byte(i)}
    header = {
        "model": "llama",
        "tokens": [original.id_to_piece(i) for i in ids],
        "scores": [original.get_score(i) for i in ids],
        "token_type": [kinds.get(i, 1) for i in ids],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }

    class Header:
        where = "header"

        def value(self, key: str, otherwise: Any = None) -> Any:
            return header.get(key.removeprefix("tokenizer.ggml."), otherwise)

    tokenizer = gguf_tokenizer.build(Header())
    for text in (
        "Hello world",
        "12, 345\n6:",
        " leading",
        "two  spaces",
        "café 😀\t日本語",
        "\n\nIf",
    ):
        assert tokenizer.encode(text) == [1, *original.encode(text)]
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("values", "rope", "factor"),
    [
        ({"rope.scale_linear": 4.0}, "linear", 4.0),  # the older name
        ({"rope.scaling.factor": 2.0}, "linear", 2.0),  # llama.cpp takes no type for linear
        ({"rope.scaling.factor": 2.0, "rope.scaling.type": "linear"}, "linear", 2.0),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, "linear", 2.0),
        ({"rope.scaling.factor": 2.0, "rope.scaling.type": "none"}, "default", 1.0),
        ({"rope.scaling.type": "linear"}, "default", 1.0),
        ({"rope.scaling.factor": 0.0}, "default", 1.0),
        ({"tensor_data_layout": "Meta AI original pth"}, "default", 1.0),
    ],
)
def test_scaled_positions_are_those_of_llama_cpp(
    values: dict[str, Any], rope: str, factor: float, tmp_path: Path
) -> None:
    named = {f"llama.{key}": value for key, value in values.items()}
    found = GgufFile(tiny_gguf.write(tmp_path / "model.gguf", values=named)).architecture()
    assert (found.rope, found.rope_factor) == (rope, factor)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "falcon"}, "general.architecture .*'falcon'.*llama"),
        ({"kind": Kind.Q8_K}, "has the type Q8_K, which cannot be read"),
        ({"values": {"llama.expert_count": 8}}, "llama.expert_count .* = 8: must be 0"),
        ({"values": {"llama.attention.causal": False}}, "causal .* = False: must be True"),
        ({"values": {"llama.embedding_scale": 8.0}}, "embedding_scale .* = 8.0: must be 0 or 1"),
        ({"values": {"llama.attention.temperature": 2.0}}, "temperature .* = 2.0: is not known"),
        ({"values": {"llama.tensor_data_layout": "rows"}}, "layout .*'rows': must be Meta AI or"),
        ({"values": {"general.type": "adapter"}}, "general.type .*'adapter': must be model"),
        ({"values": {"llama.rope.dimension_count": 8}}, "rope.dimension_count .* = 8.*, 16"),
        ({"values": {"llama.rope.scaling.type": "yarn"}}, "'yarn': must be none or linear"),
        ({"values": {"llama.block_count": None}}, "llama.block_count .*: is missing"),
        ({"values": {"llama.block_count": 3}}, "lacks 9 tensors .*layers.2"),
        ({"values": {"llama.feed_forward_length": 32}}, r"shape \[96, 64\], but \[32, 64\]"),
        ({"values": {"tokenizer.ggml.pre": "klingon"}}, "tokenizer.ggml.pre .*'klingon'"),
        ({"values": {"llama.rope.freq_base": float("inf")}}, "freq_base .* = inf: is too large"),
        ({"tokens": [*tiny_gguf.TOKENS, "a"]}, "ggml.tokens .* has a token twice, 'a'"),
        ({"values": {"tokenizer.ggml.eos_token_id": 5000}}, "eos_token_id .* = 5000: must be one"),
        (
            {"tokens": [*tiny_gguf.TOKENS, *(f"t{i}" for i in range(99))]},
            "ids up to .*has only 96 tokens",
        ),
    ],
)
def test_what_is_not_supported_is_named(options: Any, message: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", **options)
    with pytest.raises(ConfigError, match=message):
        convert.examine(path, "float32", True)
