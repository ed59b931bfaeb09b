"""What vLLM loads of the engine ``vllm``, without vLLM: how staging a version ends."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest
import rlax_vllm
from waiting import wait_until

PATH = Path(rlax_vllm.__file__).parent / "inside" / "rlax_vllm_inside.py"
ABSENT = (
    "torch",
    "vllm",
    "vllm.model_executor.layers.vocab_parallel_embedding",
    "vllm.model_executor.model_loader.reload",
    "vllm.platforms",
)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    spec = importlib.util.spec_from_file_location("rlax_vllm_inside", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("error", "unreadable"),
    [
        (OSError("stale file handle"), True),
        (MemoryError(), True),
        (RuntimeError("can't allocate memory"), True),
        (ValueError("tensor 'x' is in two files"), False),
    ],
)
def test_only_bytes_that_were_read_make_a_version_wrong(
    error: Exception, unreadable: bool, inside: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "safe_open", MagicMock(side_effect=error))
    extension = inside.Extension()
    extension.rlax_stage("1-a-1", ["model.safetensors"], {"x": [[1], "float32"]})
    wait_until(lambda: extension.rlax_staged("1-a-1")["done"])
    staged = extension.rlax_staged("1-a-1")
    assert staged["unreadable"] is unreadable and str(error) in staged["error"]
    with pytest.raises(ValueError, match="is not staged"):
        extension.rlax_switch("1-a-1")
