"""``RunFiles`` and a store on the stand-in for ``gs://``."""

from __future__ import annotations

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


@pytest.mark.parametrize("where", ["disk", "objects"])
def test_the_weight_store_keeps_whole_versions(tmp_path: Path, where: str) -> None:
    root = str(tmp_path) if where == "disk" else f"objects:/{tmp_path}"
    store = NpzStore()
    store.save(f"{root}/v0", ARRAYS)
    with pytest.raises(WeightsError, match="it exists"):
        store.save(f"{root}/v0", ARRAYS)
    found = store.load(f"{root}/v0", ARRAYS)
    assert all(found[name].tobytes() == array.tobytes() for name, array in ARRAYS.items())
    assert np.load(tmp_path / "v0/weights.npz")["a"].tolist() == ARRAYS["a"].tolist()
    with pytest.raises(WeightsError, match="expected"):
        store.load(f"{root}/v0", {"a": ARRAYS["a"]})
    with pytest.raises(WeightsError, match=r"v1/weights\.npz does not exist"):
        store.load(f"{root}/v1", ARRAYS)
    store.delete(f"{root}/v0")
    store.delete(f"{root}/v0")  # silent
    assert RunFiles(root).names("") == []


def test_every_damaged_byte_and_every_missing_end_is_found(tmp_path: Path) -> None:
    store = NpzStore()
    store.save(str(tmp_path / "v0"), ARRAYS)
    file = tmp_path / "v0/weights.npz"
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(WeightsError, match=r"weights\.npz is damaged"):
            store.load(str(tmp_path / "v0"), ARRAYS)
        file.write_bytes(whole[:place])
        with pytest.raises(WeightsError, match=r"weights\.npz is damaged"):
            store.load(str(tmp_path / "v0"), ARRAYS)
