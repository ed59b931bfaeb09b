"""Corrupted copies of tiny models: each is a model or one clear error, and MaxText is not asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import corrupting
import pytest
from processes import python_path

HERE = Path(__file__).parent
HELPERS = HERE.parents[1] / "helpers"
TOKENS = HERE.parent / "base" / "tokens"

# Sources that other files of tests refuse, in one process.
REFUSALS = """
import shutil, sys
from pathlib import Path
import small_tokenizers, tiny_models
import test_converted_sources, test_tensor_headers, test_tokenizer_files
from maxtext_overrides.models import convert
from rlax_maxtext.models import examine_model
from rlax_plugin.base.errors import ConfigError

place, count = Path(sys.argv[1]), 0

def look(source):
    global count
    try:
        convert.examine(source, "float32", True)
    except ConfigError:
        try:
            examine_model(source, "float32", True)
        except ConfigError:
            count += 1
    assert "maxtext" not in sys.modules and "jax" not in sys.modules, source

whole = tiny_models.write("llama", place / "llama")
broken = [change for change, _ in test_tokenizer_files.BROKEN.values()]
rejected = [change for change, _ in test_converted_sources.REJECTED.values()]
for change in broken + rejected:
    source = shutil.copytree(whole, place / "source")
    if change in broken:
        small_tokenizers.byte_level(source)
    change(source)
    look(source)
    shutil.rmtree(source)
for content, _ in test_tensor_headers.GGUF.values():
    (place / "model.gguf").write_bytes(content)
    look(place / "model.gguf")
for content in test_tensor_headers.SAFETENSORS.values():
    (place / "llama" / "model.safetensors").write_bytes(content)
    look(place / "llama")
print(count)
"""


def finished(*arguments: str) -> str:
    """What a process prints that has these helpers and test files to import."""
    path = python_path(HELPERS, HERE, TOKENS)
    environment: Mapping[str, str] = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", corrupting.FILES)
def test_a_few_copies_of_each_file(name: str, tmp_path: Path) -> None:
    found = corrupting.outcomes(name, tmp_path, count=25)
    assert found["error"] >= 5 and sum(found.values()) == 25


@pytest.mark.long
def test_many_copies_with_a_limit_of_memory() -> None:
    names = [
        line.partition(" ")[0] for line in finished(corrupting.__file__, "300", "1").split("\n")
    ]
    assert [name for name in names if name in corrupting.FILES] == list(corrupting.FILES)


def test_no_refusal_imports_maxtext(tmp_path: Path) -> None:
    assert int(finished("-c", REFUSALS, str(tmp_path)).split()[-1]) >= 90
