"""Files of secrets: for one user alone, made once, distrusted where others could have been."""

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.rpc.security.certificate import new_identity
from rlax_plugin.rpc.security.key_ring import on_ring, token_path
from rlax_plugin.rpc.security.private_files import write_private_json
from rlax_plugin.rpc.security.run_secrets import known_secrets, run_secrets, token_file
from rlax_plugin.rpc.security.secret import MissingSecretError, Secret, new_token, read_secret

FILES = ("secrets.json", "worker-token.json")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_the_files_are_for_their_user_alone_whatever_the_umask(umask: None, tmp_path: Path) -> None:
    made = run_secrets(tmp_path)
    assert [mode(tmp_path / name) for name in FILES] == [0o600] * 2
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(FILES)
    with on_ring("127.0.0.1:9", made.of_worker) as path:
        assert path is not None and mode(path) == 0o600 and mode(path.parent) == 0o700
        assert path == token_path("localhost:9")
    assert not path.exists()


@pytest.mark.parametrize("role", ["host", "client"])
def test_a_token_that_others_may_have_read_is_replaced_by_the_next_start(
    role: Literal["host", "client"], tmp_path: Path
) -> None:
    before = run_secrets(tmp_path)
    token = before.share(role)
    assert run_secrets(tmp_path) == before
    token_file(tmp_path, role).chmod(0o644)
    after = run_secrets(tmp_path)
    assert after.share(role) != token and after.worker == before.worker
    assert run_secrets(tmp_path) == after == known_secrets(tmp_path)


def test_a_token_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    secrets = run_secrets(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(ConfigError, match=f"{token_file(tmp_path, 'client')} cannot be written"):
        secrets.share("client")


def test_secrets_are_made_once_and_differ_from_run_to_run(tmp_path: Path) -> None:
    one, again = run_secrets(tmp_path), run_secrets(tmp_path)
    assert one == again == known_secrets(tmp_path)
    (tmp_path / "other").mkdir()
    other = run_secrets(tmp_path / "other")
    tokens = [one.trainer, one.worker, other.trainer, other.worker]
    assert len(set(tokens)) == 4 and all(len(bytes.fromhex(token)) == 32 for token in tokens)
    assert one.identity.certificate != other.identity.certificate
    assert read_secret(one.worker_file, "--token-file") == one.of_worker


def test_a_worker_is_handed_neither_the_trainers_token_nor_the_key(tmp_path: Path) -> None:
    made = run_secrets(tmp_path)
    handed = made.worker_file.read_text()
    assert made.worker in handed and made.trainer not in handed and "PRIVATE KEY" not in handed
    assert made.trainer not in repr(made) and made.worker not in repr(made.of_worker)
    assert made.identity.key not in repr(made)


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    barrier, found = threading.Barrier(8), []

    def make() -> None:
        barrier.wait(60)
        found.append(run_secrets(tmp_path))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8 and len({one.trainer for one in found}) == 1


def opened(path: Path) -> None:
    path.chmod(0o644)


def cut(path: Path) -> None:
    path.write_text(path.read_text()[:100])


def with_another_key(path: Path) -> None:
    """No server can be started with it."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"key": new_identity().key}))


@pytest.mark.parametrize("harm", [opened, cut, with_another_key])
def test_secrets_that_others_may_know_or_that_are_damaged_are_replaced(
    harm: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = run_secrets(tmp_path)
    harm(tmp_path / FILES[0])
    assert known_secrets(tmp_path) is None
    after = run_secrets(tmp_path)
    assert {after.trainer, after.worker}.isdisjoint({before.trainer, before.worker})
    assert after.identity != before.identity and mode(tmp_path / FILES[0]) == 0o600
    assert "the run gets new secrets" in caplog.text and before.trainer not in caplog.text
    assert read_secret(after.worker_file, "k") == after.of_worker


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Somebody who may write there would have secrets of his choice, or another file, read."""
    (tmp_path / "of").mkdir()
    run_secrets(tmp_path / "of")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILES[0]).symlink_to(tmp_path / "of" / FILES[0])
    with pytest.raises(ConfigError, match=r"rlax\.state_dir"):
        run_secrets(tmp_path / "run")
    assert known_secrets(tmp_path / "run") is None


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def large(path: Path) -> None:
    write_private_json(path, "x" * (1 << 17))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (fifo, "is no ordinary file"),
        (large, "is damaged: it has more than 65536 bytes"),
        (lambda path: write_private_json(path, [1]), "is no token file"),
        (lambda path: write_private_json(path, {"token": "1"}), "is no token file"),
        (lambda path: Secret("short", "x").write(path), "is no token file"),
        (
            lambda path: Secret(new_token(), new_identity().certificate + "more").write(path),
            "is no token file",
        ),
        (lambda path: path.mkdir(), "is no ordinary file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no ordinary file"),
        (
            lambda path: (path.write_text("{}"), path.chmod(0o640)),
            "has mode 0640, so others may know",
        ),
    ],
)
def test_a_token_file_that_is_none_is_one_error(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    make(path := tmp_path / "token.json")
    with pytest.raises(ConfigError, match=rf"^--token-file = .*: .*{said}"):
        read_secret(path, "--token-file")


def test_a_token_file_that_is_not_there_yet_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(MissingSecretError, match="does not exist"):
        read_secret(tmp_path / "none", "--token-file")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file to another user")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    made = run_secrets(tmp_path)
    os.chown(made.worker_file, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534, not to that"):
        read_secret(made.worker_file, "--token-file")
    os.chown(tmp_path / FILES[0], 65534, 65534)
    assert run_secrets(tmp_path).trainer != made.trainer


def test_a_file_that_another_server_has_written_stays() -> None:
    one, two = (Secret(new_token(), new_identity().certificate) for _ in range(2))
    with on_ring("127.0.0.1:9", two) as path:
        assert path is not None
        with on_ring("127.0.0.1:9", one):
            two.write(path)
        assert read_secret(path, "k") == two
    assert not path.exists()


def test_a_home_that_cannot_be_written_costs_only_convenience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    secret = Secret(new_token(), new_identity().certificate)
    with on_ring("127.0.0.1:9", secret) as path:
        assert path is None
    assert f"{tmp_path}/file/rlax" in caplog.text and "cannot be written" in caplog.text


def test_a_user_without_a_home_names_files(monkeypatch, caplog) -> None:
    """As a container that is started with any user id: it has no account, and HOME is not set."""

    def no_account(number: int) -> object:
        raise KeyError(number)

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_account)
    secret = Secret(new_token(), new_identity().certificate)
    with on_ring("127.0.0.1:9", secret) as path:
        assert path is None
    assert "this user has no home directory" in caplog.text
    with pytest.raises(ConfigError, match=r"^--token-file: must be set: this user has no home"):
        token_path("127.0.0.1:9")
