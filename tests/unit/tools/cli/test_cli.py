"""The command line: messages and exit statuses."""

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import rlax
from installs import PARTS, install, on_path, write

TESTING = str(Path(__file__).parents[3] / "configs/testing.yml")
CONFIG = """
steps: 10
rlax:
  plugins: [tc_parts]
  prompt_source: {name: source}
  rewards: [{name: right, slots: 7}]
  rollouts: {engine: {name: engine}}
  weights: {store: {name: store}}
  launcher: {name: launch}
  trainer: {name: train}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    install(tmp_path, "tc_parts", PARTS, distribution="tc-dist", version="0.3")
    (tmp_path / "run.yml").write_text(CONFIG)
    with on_path(tmp_path):
        yield tmp_path


def test_a_command_works_without_standard_streams(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlax_plugin", "init", "run.yml", "--yes"]
    shell = f"exec {shlex.join(words)} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], cwd=tmp_path, timeout=240).returncode == 0
    assert "rlax:" in (tmp_path / "run.yml").read_text()


def test_plugins_lists_what_is_installed(folder: Path) -> None:
    install(folder, "tc_broken", "import tc_nowhere", distribution="tc-bad", version="9")
    listed = {row["name"]: row for row in json.loads(rlax("plugins", "--json").stdout)["installed"]}
    parts = listed["tc_parts"]
    assert (parts["distribution"], parts["version"]) == ("tc-dist", "0.3")
    assert parts["offers"]["trainer"] == ["train"] and "filter" not in parts["offers"]
    assert "No module named 'tc_nowhere'" in listed["tc_broken"]["error"]
    table = rlax("plugins").stdout
    assert "tc_parts" in table and "tc-dist" in table and "trainer: train" in table


def test_plugins_shows_what_a_config_would_use(folder: Path) -> None:
    config = str(folder / "run.yml")
    used = json.loads(rlax("plugins", config, "--json").stdout)["used"]
    (reward,) = [row for row in used if row["key"] == "rlax.rewards.0"]
    assert reward == {
        "key": "rlax.rewards.0",
        "kind": "reward",
        "name": "right",
        "plugin": "tc_parts",
        "distribution": "tc-dist",
        "version": "0.3",
        "options": {"slots": {"value": 7, "default": 4, "required": False, "description": ""}},
    }
    assert {row["kind"] for row in used} >= {"trainer", "advantage", "objective"}
    bare = json.loads(rlax("plugins", TESTING, "--json").stdout)["loaded"]
    assert [row["name"] for row in bare][:2] == ["rlax_plugin.testing"]
    assert bare[0]["offers"]["trainer"] == ["bigram"]
    text = " ".join(rlax("plugins", config).stdout.split())
    order = [text.index(title) for title in (" would use", " lists ", "installed plug-ins")]
    assert order == sorted(order)
    assert "rlax.rewards.0 right reward of tc_parts (tc-dist 0.3) slots 7 default 4" in text


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        ("WorkerError('no worker came')", 1),
        ("DeadlineError('a batch', 3.0, 'rlax.deadlines.batch_s')", 1),
        ("PluginError('collides')", 2),
        ("KeyboardInterrupt()", 130),
    ],
)
def test_exit_statuses(folder: Path, raised: str, status: int) -> None:
    """A part that fails while the config is checked stands for any failure."""
    source = f"""
        from rlax_plugin.api import Extension, NoOptions, hookimpl
        from rlax_plugin.base.errors import DeadlineError, PluginError, WorkerError

        def check(config, context):
            raise {raised}

        @hookimpl
        def rlax_register_trainer():
            return {{"fails": Extension(NoOptions, check, check)}}
    """
    write(folder, f"tc_fails_{status}_{len(raised)}", source)
    plugins = f"rlax.plugins=[tc_parts, tc_fails_{status}_{len(raised)}]"
    result = rlax("check", str(folder / "run.yml"), plugins, "rlax.trainer.name=fails")
    assert result.exit_code == status
    assert ("error: " in result.stderr) == (status != 130)


def test_wrong_usage_is_status_2(folder: Path) -> None:
    assert rlax("chek").exit_code == 2
    assert rlax("serve", str(folder / "run.yml")).exit_code == 2
    bad = ("serve", "--controller", "nowhere", "--name", "w")
    result = rlax(*bad)
    assert result.exit_code == 2 and "--controller = 'nowhere': must be host:port" in result.stderr


def test_parameter_server_rejects_hosts_that_are_none(folder: Path) -> None:
    result = rlax("parameter-server", str(folder / "run.yml"), "--host", "0.0.0.0")
    assert result.exit_code == 2 and "--advertised-host: must be set" in result.stderr


def test_certificates_are_made_and_what_is_wrong_with_them_is_told(folder: Path) -> None:
    certs = folder / "certs"
    result = rlax("certs", "make", str(certs))
    assert result.exit_code == 2 and "--name: must be given" in result.stderr
    result = rlax("certs", "make", str(certs), "--name", "127.0.0.1", "--days", "20")
    assert result.exit_code == 0 and "made a new authority" in result.stdout
    keys = {"certificate": "server.pem", "key": "server-key.pem", "ca": "ca.pem"}
    for key, name in keys.items():
        assert f"      {key}: {certs / name}" in result.stdout
    assert "PRIVATE" not in result.stdout
    options = [f"rlax.network.tls.{key}={certs / name}" for key, name in keys.items()]
    assert rlax("check", "--fast", str(folder / "run.yml"), *options).exit_code == 0
    other = rlax("check", "--fast", str(folder / "run.yml"), *options, "rlax.network.host=::1")
    assert other.exit_code == 2 and "is not for ::1" in other.stderr
    (certs / "server-key.pem").chmod(0o644)
    opened = rlax("check", "--fast", str(folder / "run.yml"), *options)
    assert opened.exit_code == 2 and "rlax.network.tls.key" in opened.stderr
    assert rlax("certs", "make", str(certs)).exit_code == 0  # again: for the same names


def test_a_worker_token_is_found_and_rotated(tmp_path: Path, folder: Path) -> None:
    from rlax_plugin.rpc.security.run_secrets import run_secrets

    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yml").write_text((folder / "run.yml").read_text())
    assert "has no usable secrets" in rlax("certs", "token", str(run)).stderr
    before = run_secrets(run)
    assert (
        rlax("certs", "token", str(run)).stdout
        == f"workers join with the token in {run}/worker-token.json\n"
    )
    result = rlax("certs", "token", str(run), "--rotate", "--old-for", "60")
    after = run_secrets(run)
    assert result.exit_code == 0 and "is accepted for 60 s" in result.stdout
    assert (after.earlier, after.trainer) == (before.worker, before.trainer)
    assert after.worker not in result.stdout
    assert rlax("certs", "token", str(tmp_path)).exit_code == 2


def test_a_server_without_a_lock_is_never_seen_by_other_machines(folder: Path) -> None:
    for option in ("--ca", "--name"):
        result = rlax("serve", str(folder), option, "x")
        assert result.exit_code == 2 and f"{option} = 'x': can only be used with" in result.stderr


def test_a_parameter_server_keeps_its_index_where_no_other_user_writes(folder: Path) -> None:
    """What is listed there is served, and deleted."""
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    result = rlax("parameter-server", str(folder / "run.yml"), "--index", f"{shared}/index.json")
    assert result.exit_code == 2
    assert f"--index = '{shared}/index.json': {shared} has mode 1777, so other" in result.stderr


def test_first_words_come_before_all_else_but_not_beside_json() -> None:
    later = "importing rlax and reading the config, typically about 3 s"
    result = rlax("eval", "no such run", "--json")
    assert result.exit_code == 2 and later not in result.stdout
    assert rlax("eval", "no such run").stdout.startswith(f"rlax eval no such run: {later}")


def test_a_parameter_server_follows_a_rotation(tmp_path: Path, monkeypatch) -> None:
    from rlax_plugin.rpc.security.run_secrets import rotate

    followed: list[bool] = []

    async def serves(host, port, door, store, *, beside, **others):
        task, new = asyncio.ensure_future(beside()), rotate(tmp_path / "testing", 0.0).worker
        async with asyncio.timeout(60):
            while new not in door.callers:
                await asyncio.sleep(0.02)
        followed.append(task.cancel())

    monkeypatch.setattr("rlax_plugin.weights.parameter_server.serve_parameter_server", serves)
    where = f"base_output_directory={tmp_path}"
    assert rlax("parameter-server", TESTING, where, "rlax.deadlines.heartbeat_s=0.1").exit_code == 0
    assert followed == [True]
