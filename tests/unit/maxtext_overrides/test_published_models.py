"""Published models of real size, of which only the headers of the weights are there."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from maxtext_overrides.models import convert
from maxtext_overrides.models.huggingface_config import architecture
from maxtext_overrides.models.rules import tensor_shapes
from rlax_plugin.base.errors import ConfigError

# Name -> its number of parameters, and its config.json without what does not matter.
PUBLISHED = json.loads((Path(__file__).parents[2] / "data/published_models.json").read_text())
# Of each one value that is not the published one, and what then is wrong.
OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "Llama-3.2-1B": ({"rope_interleaved": True}, "rope_interleaved in "),
    "Mixtral-8x7B": ({"sliding_window": 4096}, "sliding_window in .* = 4096"),
    "Qwen3-30B-A3B": ({"norm_topk_prob": False}, "norm_topk_prob in .* = False"),
    "gemma-2-27b": ({"rms_norm_eps": 1e-5}, "rms_norm_eps in .* = 1e-05"),
    "gemma-3-1b": ({"query_pre_attn_scalar": 168}, "query_pre_attn_scalar in .* must be 256 "),
}


def headers(content: dict[str, Any], directory: Path) -> Path:
    """A directory whose weights take no room: a header, and a hole of the right size."""
    directory.mkdir()
    path = directory / "config.json"
    path.write_text(json.dumps(content))
    entries, end = {}, 0
    for name, shape in tensor_shapes(architecture(content, path)).items():
        begin, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        os.truncate(file.fileno(), 8 + len(header) + end)
    return directory


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_number_of_parameters(name: str, tmp_path: Path) -> None:
    content, count = PUBLISHED[name]["config"], PUBLISHED[name]["parameters"]
    source = headers(content, tmp_path / "source")
    for scanned in (True, False):
        assert convert.examine(source, "bfloat16", scanned).source.where == str(source)
    # A tied head is one of the parameters that are published.
    assert convert.examine(source, "bfloat16", True).parameters == count

    changes, message = OTHER[name]
    (source / "config.json").write_text(json.dumps(content | changes))
    with pytest.raises(ConfigError, match=message):
        convert.examine(source, "bfloat16", True)
