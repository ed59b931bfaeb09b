"""What a weight store's errors mean: wrong bytes quarantine a worker, all else is tried again.

The errors are real ones of TensorStore and of the operating system, over local files and over HTTP.
"""

import os
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hostile_server import Asked, serving
from rlax_orbax import store as orbax
from rlax_orbax.layout import array_spec
from rlax_orbax.store import OrbaxStore

from rlax_plugin.base.errors import DeadlineError, WeightsError, WeightsUnreadableError

NOBODY = 65534
ARRAYS = {
    "w": np.arange(3, dtype=np.float32),
    "bf16": np.ones(3, ml_dtypes.bfloat16),
    "mask": np.array([True, False, True]),
    "count": np.array(7, np.int32),
}


@pytest.fixture
def version() -> Iterator[Path]:
    """A version that another user can reach as well."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        OrbaxStore().save(f"{folder}/0", ARRAYS)
        yield Path(folder, "0")


def error_of(path: Path) -> WeightsError:
    with pytest.raises(WeightsError) as caught:
        OrbaxStore(deadline_s=60).load(str(path), ARRAYS)
    assert str(path) in str(caught.value)
    return caught.value


def test_every_flipped_or_missing_byte_is_damage(version):
    chunks = [p for p in version.rglob("*") if "c" in p.relative_to(version).parts and p.is_file()]
    assert len(chunks) == len(ARRAYS)
    for chunk in chunks:
        whole = chunk.read_bytes()
        for position in range(len(whole)):
            changed = bytearray(whole)
            changed[position] ^= 0x10
            for data in (bytes(changed), whole[:position]):
                chunk.write_bytes(data)
                error = error_of(version)
                assert type(error) is WeightsError and "is damaged" in str(error), error
        chunk.write_bytes(whole)
    metadata = version / "_METADATA"
    for data in (b"", metadata.read_bytes()[:-1], b"\xff"):
        metadata.write_bytes(data)
        assert type(error_of(version)) is WeightsError


def forbid(version: Path) -> None:
    os.chmod(version / "w/c/0", 0)


def loop(version: Path) -> None:
    (version / "w/c/0").unlink()
    (version / "w/c/0").symlink_to("0")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (forbid, "PERMISSION_DENIED.*Permission denied"),
        (loop, "UNKNOWN.*Too many levels of symbolic links"),
        (lambda version: (version / "w/c/0").unlink(), "NOT_FOUND"),
        (lambda version: (version / "_METADATA").unlink(), "No such file"),
    ],
)
def test_what_a_file_system_rejects_is_no_damage(version, fault, said):
    fault(version)
    root = os.geteuid() == 0  # may read everything
    if root:
        os.seteuid(NOBODY)
    try:
        error = error_of(version)
    finally:
        if root:
            os.seteuid(0)
    assert type(error) is WeightsUnreadableError and re.search(said, str(error)), error


def test_a_limit_that_is_reached_is_no_damage(version, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    decode = orbax.decode

    def then_no_more_files(path, text):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        return decode(path, text)

    monkeypatch.setattr(orbax, "decode", then_no_more_files)
    try:
        error = error_of(version)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert type(error) is WeightsUnreadableError and "RESOURCE_EXHAUSTED" in str(error)


def test_a_time_out_of_the_file_system_is_no_deadline_of_ours(version, monkeypatch):
    def timed_out(path, text):
        raise TimeoutError(110, "Connection timed out")

    monkeypatch.setattr(orbax, "decode", timed_out)
    assert type(error_of(version)) is WeightsUnreadableError


def close(asked: Asked, data: bytes = b"", **headers: str) -> None:
    """Ends the connection before the whole answer was sent."""
    if data:
        asked.reply(data, **headers)
    asked.handler.close_connection = True


@pytest.mark.parametrize(
    ("answers", "kind", "said"),
    [
        (close, WeightsUnreadableError, "http"),
        (lambda asked: asked.reply(b"", 403), WeightsUnreadableError, "PERMISSION_DENIED"),
        (lambda asked: asked.reply(b"", 503), WeightsUnreadableError, "503"),
        (
            lambda asked: close(asked, b"abc", Content_Length="16"),
            WeightsUnreadableError,
            "partial",
        ),
        (lambda asked: asked.reply(b"abc"), WeightsError, "is damaged"),  # this is all there is
        (lambda asked: asked.reply(bytes(16)), WeightsError, "is damaged.*[Dd]igest"),
    ],
)
def test_what_an_object_store_answers(version, monkeypatch, answers, kind, said):
    retries = {"max_retries": 2, "initial_delay": "1ms", "max_delay": "1ms"}
    store = OrbaxStore(deadline_s=60, context={"http_request_retries": retries})
    with serving(answers) as server:
        monkeypatch.setattr(orbax, "array_spec", lambda _, *what: array_spec(server.url, *what))
        with pytest.raises(WeightsError, match=said) as caught:
            store.load(str(version), {"w": ARRAYS["w"], **ARRAYS})
    assert type(caught.value) is kind, caught.value


def test_a_load_that_comes_too_late_says_what_it_would_have_needed(tmp_path, monkeypatch):
    arrays = {"a": np.zeros(10**6, np.float32), "b": np.zeros(3 * 10**6, np.float32)}
    OrbaxStore().save(str(tmp_path / "0"), arrays)
    with serving(lambda asked: asked.reply(b"", 503)) as server:
        where = {"a": str(tmp_path / "0"), "b": server.url}
        monkeypatch.setattr(
            orbax, "array_spec", lambda _, name, layout: array_spec(where[name], name, layout)
        )
        # The first array comes however slow the machine is, and the second one never.
        monkeypatch.setattr(orbax.Clock, "left_s", lambda self: 0.2 if self.moved else 60)
        with pytest.raises(DeadlineError) as caught:
            OrbaxStore(deadline_s=2).load(str(tmp_path / "0"), arrays)
    assert "4 of 16 MB were moved, took longer than 2 s: it would have needed about 8 s" in str(
        caught.value
    )
    assert caught.value.key == "rlax.deadlines.weights_s"


def test_delete_removes_what_a_killed_save_has_left(tmp_path):
    OrbaxStore().save(str(tmp_path / "kept"), ARRAYS)
    (tmp_path / "0.orbax-checkpoint-tmp/w").mkdir(parents=True)
    (tmp_path / "0.orbax-checkpoint-tmp/w/zarr.json").touch()
    OrbaxStore().delete(str(tmp_path / "0"))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
