"""The directory of a worker's copies: private, its own, and gone when the worker is."""

import subprocess
import sys
from pathlib import Path

import pytest
from sections import section_with

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import RlaxSection
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.local_copies import local_copies, unseen

KILLED = """
import os, signal, sys
from sections import section_with
from rlax_plugin.weights.local_copies import local_copies

before = os.listdir(sys.argv[1])
with local_copies(section_with(weights={"transfer": "stream", "stream_dir": sys.argv[1]})):
    (own,) = (p for p in os.scandir(sys.argv[1]) if p.is_dir() and p.name not in before)
    open(own.path + "/weights", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def settings(place: object, transfer: str = "stream") -> RlaxSection:
    return section_with(weights={"transfer": transfer, "stream_dir": str(place)})


def test_a_worker_that_reads_at_the_path_makes_no_directory(tmp_path: Path) -> None:
    with local_copies(settings(tmp_path / "copies", "path")) as copies:
        assert copies is None and not list(tmp_path.iterdir())


def test_what_a_killed_worker_has_left_is_deleted_and_nothing_of_living_ones(tmp_path) -> None:
    place = tmp_path / "copies"
    with local_copies(settings(place)):
        living = set(place.iterdir())
        command = [sys.executable, "-c", KILLED, str(place)]
        path = {"PYTHONPATH": ":".join(sys.path), "PATH": ""}
        assert subprocess.run(command, env=path, timeout=60).returncode == -9
        (left,) = (p for p in set(place.iterdir()) - living if p.is_dir())
        assert (left / "weights").exists()
        (place / "worker-foreign").write_text("a file of somebody else's")
        with local_copies(settings(place)):
            assert not left.exists() and living < set(place.iterdir())
        assert set(place.iterdir()) == living | {place / "worker-foreign"}


def test_the_directory_is_private_and_its_default_is_a_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with local_copies(settings("")):
        place = tmp_path / "rlax/weights"
        assert place.stat().st_mode & 0o777 == 0o700
        assert len([one for one in place.iterdir() if one.is_dir()]) == 1
    assert not list(place.iterdir())
    place.chmod(0o770)
    with (
        pytest.raises(ConfigError, match=r"rlax\.weights\.stream_dir = .*has mode 0770"),
        local_copies(settings("")),
    ):
        pass


def test_a_directory_that_cannot_be_written_names_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"stream_dir = .*file/x': cannot be written"),
        local_copies(settings(tmp_path / "file/x")),
    ):
        pass
    with pytest.raises(Exception, match="must be a local directory"):
        settings("gs://bucket/copies")


def test_a_machine_without_the_directory_of_the_weights_gets_advice(tmp_path: Path) -> None:
    there = make_version(1, f"{tmp_path}/00000001-a", {})
    assert unseen(there) == "" == unseen(make_version(1, "gs://b/00000001-a", {}))
    said = unseen(make_version(1, f"{tmp_path}/weights/00000001-a", {}))
    assert f"no directory {tmp_path}/weights: if" in said and "rlax.weights.transfer=stream" in said
