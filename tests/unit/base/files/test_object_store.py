"""``RunFiles`` and a store on the stand-in for ``gs://``."""

from pathlib import Path

import numpy as np
import object_store
import pytest

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.testing.store import NpzStore


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"objects:/{tmp_path}"


@pytest.fixture
def counted(tmp_path: Path, monkeypatch) -> Path:
    log = tmp_path.with_suffix(".calls")
    monkeypatch.setenv(object_store.CALLS, str(log))
    return log


def test_run_files_need_no_more_than_that(url: str, tmp_path: Path, counted: Path) -> None:
    files = RunFiles(url)
    assert not files.is_local
    assert files.location("a/b.json") == f"{url}/a/b.json"
    assert files.names("") == [] and files.get_json("a/b.json") is None
    files.put_json("a/b.json", {"x": 1})
    files.put("a/c", b"12")
    files.put("a/c", b"345")
    files.put("a/d/e", b"")
    assert files.get_json("a/b.json") == {"x": 1} and files.get("a/c") == b"345"
    assert files.names("a") == ["b.json", "c", "d"] and files.names("") == ["a"]
    assert RunFiles(files.location("a")).names("d") == ["e"]
    assert files.exists("a/d") and files.exists("a/d/e")
    files.delete("a/c")
    files.delete("a/c")  # silent
    with pytest.raises(FileNotFoundError):
        files.get("a/c")
    files.delete("a")
    assert files.names("") == [] and not files.exists("a/b.json")
    found = object_store.calls(counted)
    assert found["put"] == 4 and found["delete"] == 3 and found["rejected"] == 0


ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}


def test_the_weight_store_keeps_whole_versions_there(url: str, tmp_path: Path) -> None:
    store = NpzStore()
    store.save(f"{url}/v0", ARRAYS)
    with pytest.raises(WeightsError, match="it exists"):
        store.save(f"{url}/v0", ARRAYS)
    found = store.load(f"{url}/v0", ARRAYS)
    assert all(found[name].tobytes() == array.tobytes() for name, array in ARRAYS.items())
    assert np.load(tmp_path / "v0/weights.npz")["a"].tolist() == ARRAYS["a"].tolist()
    store.delete(f"{url}/v0")
    assert RunFiles(url).names("") == []
