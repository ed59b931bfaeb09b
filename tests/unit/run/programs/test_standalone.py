"""Which version of a run is served, and where its weights are."""

import asyncio
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rlax_plugin.base.errors import ConfigError, DeadlineError, WeightsError, WeightsUnreadableError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.config.network import Place
from rlax_plugin.rollout.worker.endpoint import Endpoint
from rlax_plugin.rpc.security.secret import read_secret
from rlax_plugin.run.programs.standalone import load_readable, serve_run
from rlax_plugin.testing.builders import make_version
from rlax_plugin.testing.engine import ScriptedEngine
from rlax_plugin.tools.cli import app
from rlax_plugin.weights.kept_versions import kept_version, record_versions, versions_to_json

ROOT = Path(__file__).parents[4]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has kept versions 3 and 4, of which only 4 still has weights."""
    run = tmp_path / "runs/mine"
    (run / "weights/4").mkdir(parents=True)
    (run / "weights/4/bytes").touch()
    (run / "config.yml").write_text("steps: 4\n")
    versions = [make_version(n, f"{run}/weights/{n}", {}) for n in (3, 4)]
    record_versions(RunFiles(run), versions_to_json(versions))
    return run


def test_the_newest_version_is_served_unless_another_is_asked_for(run: Path) -> None:
    assert kept_version(RunFiles(run)).version == 4
    assert kept_version(RunFiles(run), 4).paths == (f"{run}/weights/4",)
    for number, reason in ((7, "does not exist"), (2, "is no longer kept")):
        message = f"--version = {number}: {reason}; available: 3, 4"
        with pytest.raises(ConfigError, match=message):
            kept_version(RunFiles(run), number)


def test_a_run_that_was_moved_is_served_from_where_it_is(run: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(run, tmp_path / "elsewhere"))
    assert kept_version(RunFiles(moved)).paths == (f"{moved}/weights/4",)


def test_weights_that_are_gone_are_an_error(run: Path) -> None:
    with pytest.raises(WeightsError, match=r"weights of version 3 are gone: .*weights/3"):
        kept_version(RunFiles(run), 3)


def test_a_version_that_is_deleted_meanwhile_is_replaced_by_the_newest(run: Path) -> None:
    """The run goes on: what its list named has gone when it is read."""
    asked = []

    async def take(version: WeightVersion) -> None:
        asked.extend(version.paths)
        if not Path(version.paths[0]).exists():
            raise WeightsUnreadableError(f"{version.paths[0]} does not exist")

    files = RunFiles(run)
    chosen = kept_version(files)
    record_versions(files, versions_to_json([make_version(5, f"{run}/weights/5", {})]))
    shutil.rmtree(chosen.paths[0])
    (run / "weights/5").mkdir()
    (run / "weights/5/bytes").touch()

    def load(weights_s: float) -> WeightVersion:
        return asyncio.run(load_readable(take, chosen, lambda: kept_version(files), weights_s))

    with pytest.raises(DeadlineError, match=r"reading version 4 .*/4 does not exist.*weights_s"):
        load(0.1)
    assert load(20).version == 5
    assert asked == [chosen.paths[0], chosen.paths[0], f"{run}/weights/5"]


def test_a_directory_without_weights_says_what_is_missing(run: Path) -> None:
    (run / "versions.json").unlink()
    with pytest.raises(ConfigError, match=r"^RUN = .*mine': has no weight versions: name a"):
        kept_version(RunFiles(run))
    (run / "config.yml").unlink()
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no config\.yml"):
        serve_run(str(run))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "RUN = 'nowhere': is not a run directory"),
        (["nowhere", "--name", "w"], "--name = 'w': can only be used with --controller"),
        ([], "RUN: must be given, or --controller HOST:PORT"),
        (["nowhere", "--open", "--token-file", "t"], "--token-file = 't': cannot be used with"),
        (["--open", "--controller", "127.0.0.1:1"], "--open = True: cannot be used with"),
        (["--controller", "127.0.0.1:1", "--name", "w", "--version", "0"], "--version = 0: cannot"),
        (["nowhere", "--prometheus-token-file", "token"], "used with --prometheus-port"),
    ],
)
def test_what_does_not_go_together_is_rejected(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2 and said in result.stderr


def test_a_port_that_is_taken_is_an_error_of_its_option() -> None:
    async def listen(port: int) -> None:
        engine = ScriptedEngine.__new__(ScriptedEngine)
        with Endpoint(Place(), engine, name="w", port=port):
            pytest.fail("it listens")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port = {port}: cannot be used"):
            asyncio.run(listen(port))


def written(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize(
    "make",
    [
        Path.mkdir,
        lambda path: written(path, "precious", 0o644),
        lambda path: written(path, json.dumps({"token": "1"}), 0o600),
        lambda path: path.symlink_to("nowhere"),
    ],
)
def test_what_is_no_token_file_is_not_written_over(make: Callable[[Path], None], tmp_path) -> None:
    make(path := tmp_path / "token.json")
    before = unread(path)
    with pytest.raises(ConfigError, match=r"^--token-file = .*: exists already, and is no token"):
        asyncio.run(listening(path))
    assert unread(path) == before and [*tmp_path.iterdir()] == [path]


def unread(path: Path) -> tuple[int, int, int, int]:
    """All that a reader of a file or directory leaves as it was: not its time of access."""
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


async def listening(token_file: Path | None) -> Path | None:
    """The token file of a server that has started to listen."""
    engine = ScriptedEngine.__new__(ScriptedEngine)
    with Endpoint(Place(), engine, name="w", clients="token", token_file=token_file) as endpoint:
        return endpoint.clients_file


def test_a_token_file_of_an_earlier_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "token.json"
    assert asyncio.run(listening(path)) == path
    before = read_secret(path, "k")
    assert asyncio.run(listening(path)) == path
    assert read_secret(path, "k") != before


def test_a_server_whose_token_file_cannot_be_written_names_none(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert asyncio.run(listening(None)) is None
    config = yaml.safe_load((ROOT / "tests/configs/testing.yml").read_text())
    (run / "config.yml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=r"^--token-file: must be given: the file cannot be"):
        serve_run(str(run))
