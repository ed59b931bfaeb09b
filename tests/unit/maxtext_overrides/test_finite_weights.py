"""Weights that are NaN or infinite, or become so: refused when they are read, and named."""

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tiny_gguf
import tiny_models
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize
from safetensors.numpy import load_file, save_file

from maxtext_overrides.models import convert
from maxtext_overrides.models.finite import made, not_finite
from maxtext_overrides.models.gguf_file import GgufFile
from maxtext_overrides.models.tensors import DTYPES
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.places import new_directory

LAST = "model.embed_tokens.weight"  # in the order in which a checkpoint is written
NAME = "model.layers.1.mlp.gate_proj.weight"


def change(
    source: Path, dtype: str, values: dict[tuple[int, int], float], name: str = NAME
) -> None:
    """Stores one tensor in another dtype, with other values at these places."""
    held = load_file(source / "model.safetensors")
    held[name] = held[name].astype(dtype)
    for place, value in values.items():
        held[name][place] = value
    save_file(held, source / "model.safetensors")


def read_all(source: Path, dtype: str) -> None:
    """Does with a source what writing its checkpoint does before anything is on disk."""
    found = convert.examine(source, dtype, True)
    for variable in found.variables:
        value = made(variable, found.source, DTYPES[dtype])
        assert value.shape == variable.shape and value.dtype == DTYPES[dtype]


NAN = {(3, 5): np.nan, (90, 1): np.inf, (90, 2): -np.inf}
CASES = {
    "nan": ("float32", NAN, "float32", r"3 of 6144 .*: nan at \[3, 5\]\) .*{} are not finite"),
    "inf": ("bfloat16", {(95, 63): -np.inf}, "float32", r"1 of .*: -inf at \[95, 63\]\) .*{} are"),
    "half": (
        "float16",
        {(0, 0): np.inf},
        "float32",
        r"1 of 6144 .*: inf at \[0, 0\]\) .*{} are not",
    ),
    "double": (
        "float64",
        {(0, 1): 1e300},
        "float32",
        r"1e\+300 at \[0, 1\]\) .*{} exceed .* float32",
    ),
    "rounded": ("float32", {(1, 0): -3.4e38}, "bfloat16", r"1, 0\]\) .*{} exceed .* of bfloat16"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tensor_is_named(case: str, tmp_path: Path) -> None:
    source = tiny_models.write("llama", tmp_path / "source")
    stored, values, dtype, message = CASES[case]
    change(source, stored, values)
    with pytest.raises(ConfigError, match=message.format(NAME)) as caught:
        read_all(source, dtype)
    assert str(caught.value).startswith(f"SOURCE = {str(source)!r}: ")


def test_what_is_large_and_finite_is_kept(tmp_path: Path) -> None:
    source = tiny_models.write("llama", tmp_path / "source")
    change(source, "float64", {(0, 0): 3.38e38, (0, 1): -3.38e38, (0, 2): 1e-300})
    read_all(source, "float32")
    read_all(source, "bfloat16")


def test_a_block_with_a_damaged_scale(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", kind=Kind.Q8_0)
    read_all(path, "float32")
    first = quantize(GgufFile(path).read(NAME)[:1, :32], Kind.Q8_0).tobytes()
    content = bytearray(path.read_bytes())
    place = content.index(first)
    content[place : place + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(content)
    message = rf"32 of 6144 values \(the first: \S+ at \[0, 0\]\) of the tensor {NAME} are not"
    with pytest.raises(ConfigError, match=message):
        read_all(path, "float32")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """The checkpoint is being written when the tensor's turn comes."""
    source = tiny_models.write("llama", tmp_path / "source")
    change(source, "float32", {(95, 0): np.nan}, LAST)
    found, out = convert.examine(source, "float32", True), tmp_path / "new" / "out"
    done: list[int] = []
    with (
        pytest.raises(ConfigError, match=f"{LAST} are not finite"),
        new_directory("--out", out) as directory,
    ):
        found.write(directory, out, lambda so_far, _: done.append(so_far))
    assert max(done) > 0 and [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_places_are_counted_in_pieces(dtype: str) -> None:
    value = np.zeros((1000, 1000), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    tracemalloc.start()
    assert not_finite(value) is None
    assert tracemalloc.get_traced_memory()[1] < value.size / 4  # less than a flag for each number
    tracemalloc.stop()
    value[999, 999], value[123, 456], value[124, 0] = np.inf, np.nan, np.nan
    assert not_finite(value) == (3, 123_456)
