"""Corrupted copies of tiny models, and whether each becomes a model or one clear error.

``python corrupting.py COUNT SEED`` tries so many copies of each file, with a limit of memory.
"""

import json
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny_gguf
import tiny_models
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from maxtext_overrides.models import convert, finite
from rlax_plugin.base.errors import ConfigError

GGUF, TENSORS, INDEX = "tiny.gguf", "model.safetensors", "model.safetensors.index.json"
JSON = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
FILES = (GGUF, TENSORS, INDEX, *JSON)
_LONGEST = 3000  # characters of a message
_MEMORY = 4 << 30  # bytes of addresses
_HEADER = 6000  # bytes at the beginning of a file, of which most are those that say something
_NUMBERS = (0, 1, 2, 8, 0x7F, 0x80, 0xFFFFFFFF, 1 << 40, 1 << 63, (1 << 64) - 1)
_VALUES = (
    *("null", "true", "-1", "0", "1.5", "1e400", "NaN", str(1 << 70)),
    *('""', '"x"', '"\\ud800"', '"\\u0000"', "[]", "[1]", "[[]]"),
    *("{}", '{"a": 1}', '{"content": 5}', "[" * 5000 + "]" * 5000),
)
# Another architecture than those that are known is one of MaxText's, which takes seconds to import.
_KEPT = "architectures"


def copies(name: str, original: bytes, seed: int) -> Callable[[], bytes]:
    """Returns what makes one corrupted copy after the other, the same ones each time."""
    chance = random.Random(f"{name} {seed}")

    def corrupt() -> bytes:
        if name.endswith(".json") and chance.random() < 0.75:
            return _changed(json.loads(original), chance).encode()
        while True:
            found = _spoilt(original, chance)
            if name != "config.json" or b'"LlamaForCausalLM"' in found:
                return found

    return corrupt


def _spoilt(original: bytes, chance: random.Random) -> bytes:
    data = bytearray(original)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        end = len(data) if chance.random() < 0.2 else min(len(data), _HEADER)
        if not end:
            break
        at, width = chance.randrange(end), chance.choice((1, 4, 8))
        match chance.randrange(6):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1 | 2:
                number = chance.choice(_NUMBERS) % (1 << 8 * width)
                data[at : at + width] = number.to_bytes(width, "little")
            case 3:
                del data[at : at + width]
            case 4:
                start = chance.randrange(len(data))
                data[at:at] = data[start : start + 8 * width]
            case _:
                del data[at:]
    return bytes(data)


def _changed(content: Any, chance: random.Random) -> str:
    """JSON with one or several values replaced, removed or renamed."""
    marks = {f"<{number}>": value for number, value in enumerate(_VALUES)}
    for _ in range(chance.choice((1, 1, 2, 3))):
        found = [one for one in _places(content) if one[1] != _KEPT]
        if not found:
            break
        parent, key = chance.choice(found)
        kind = chance.randrange(4)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[f"new_{key}"] = parent.pop(key)
        else:
            parent[key] = chance.choice(list(marks))
    text = json.dumps(content)
    for mark, value in marks.items():
        text = text.replace(f'"{mark}"', value)
    return text


def _places(content: Any) -> list[tuple[Any, Any]]:
    """(container, key) of the values in JSON; of long lists, the first ones."""
    keys = list(content) if isinstance(content, dict) else range(len(content))
    found = [(content, key) for key in list(keys)[:40] if key != _KEPT]
    for parent, key in tuple(found):
        if isinstance(parent[key], dict | list):
            found += _places(parent[key])
    return found


def outcomes(name: str, directory: Path, count: int, seed: int = 0) -> dict[str, int]:
    """Tries corrupted copies of one file.

    Returns:
      How many became a model, and how many one error.

    Raises:
      AssertionError: a line of an error is not one that a user can read.
      Exception: whatever else comes out of reading a copy.
    """
    source = _source(name, directory)
    path = source if name == GGUF else source / name
    corrupt = copies(name, path.read_bytes(), seed)
    found = {"model": 0, "error": 0}
    for _ in range(count):
        path.write_bytes(corrupt())
        try:
            _read(source, directory / "beside")
        except ConfigError as error:
            for line in (error.reason, *error.others):
                assert len(line) < _LONGEST and "\n" not in line, line
            found["error"] += 1
        else:
            found["model"] += 1
    return found


def _source(name: str, directory: Path) -> Path:
    if name == GGUF:
        return tiny_gguf.write(directory / GGUF, kind=GGMLQuantizationType.Q8_0)
    source = tiny_models.write("llama", directory / "source")
    if name == INDEX:
        held = load_file(source / TENSORS)
        names = sorted(held)
        parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, those in parts.items():
            save_file({one: held[one] for one in those}, source / file)
        index = {one: file for file, those in parts.items() for one in those}
        (source / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
        (source / TENSORS).unlink()
    return source


def _read(source: Path, beside: Path) -> None:
    """Does all that converting does before a checkpoint is written."""
    found = convert.examine(source, "float32", True)
    beside.mkdir()
    try:
        found.write_beside(beside)
    finally:
        shutil.rmtree(beside)
    for variable in found.variables:
        finite.made(variable, found.source, np.dtype(np.float32))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    for file in FILES:
        with tempfile.TemporaryDirectory() as place:
            print(file, outcomes(file, Path(place), int(sys.argv[1]), int(sys.argv[2])))
    assert "maxtext" not in sys.modules
