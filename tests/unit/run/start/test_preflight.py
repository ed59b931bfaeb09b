"""The checks before a run starts: places that hang or cannot be read, and what cannot train."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import psutil
import pytest
from command_line import rlax
from fsspec.spec import AbstractFileSystem

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.places import check_file_writable, check_readable, check_writable
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import load_section, resolve
from rlax_plugin.ports.protocols import CheckResult
from rlax_plugin.run.start.preflight import check_places
from rlax_plugin.run.start.run_directory import make_directories
from rlax_plugin.tools.commands.check import examine, explanation
from rlax_plugin.tools.commands.check.warnings import warnings

TESTING = str(Path(__file__).parents[3] / "configs/testing.yml")
OUTPUT = "base_output_directory"
DEMO = str(Path(__file__).parents[4] / "configs/demo.yml")


class Bucket(AbstractFileSystem):
    """Behaves as its name says: ``stuck``, ``denied``, or without anything in it."""

    protocol = "bucket"
    cachable = False
    looked: ClassVar[list[str]] = []

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self.looked.append(path)
        if "stuck" in path:
            threading.Event().wait(60)
        if "denied" in path:
            raise PermissionError("no credentials")
        raise FileNotFoundError(path)


@pytest.fixture(autouse=True)
def bucket() -> list[str]:
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    Bucket.looked.clear()
    return Bucket.looked


@pytest.mark.parametrize(
    ("command", "key", "value", "rpc_s", "message"),
    [
        ("train", OUTPUT, "bucket://stuck/runs", 0.3, "cannot be reached within 0.3 s"),
        ("check", OUTPUT, "bucket://denied/runs", 60, "cannot be read: "),
        ("check", "rlax.weights.path", "bucket://stuck/weights", 0.3, "within 0.3 s"),
    ],
)
def test_a_bucket_out_of_reach_is_an_error_in_time(
    command: str,
    key: str,
    value: str,
    rpc_s: float,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = rlax(command, TESTING, f"{key}={value}", f"rlax.deadlines.rpc_s={rpc_s}")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {key} = '{value}': ")
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rlax.weights.path=s3://bucket/w", r"^rlax\.weights\.path = .*: cannot hold weight"),
        ("base_output_directory=s3://bucket", r"^base_output_directory = .*: set rlax\.weights"),
    ],
)
def test_s3_holds_no_weight_versions(override: str, message: str) -> None:
    config = resolve(DEMO, [override])
    with pytest.raises(ConfigError, match=message):
        examine(config, registry_for(config.section))


@pytest.mark.parametrize("key", ["base_output_directory", "rlax.weights.path"])
def test_weights_on_an_object_store_are_not_streamed(key: str) -> None:
    config = resolve(TESTING, [f"{key}=bucket://b/w", "rlax.weights.transfer=stream"])
    reason = r"^rlax\.weights\.transfer = 'stream': must be path: .* object store, bucket://b/w"
    with pytest.raises(ConfigError, match=reason):
        examine(config, registry_for(config.section))


def test_a_fast_check_asks_no_bucket(bucket: list[str]) -> None:
    assert rlax("check", "--fast", TESTING, "base_output_directory=bucket://stuck").exit_code == 0
    assert bucket == []


def test_a_bucket_without_the_run_is_one_to_write_to() -> None:
    check_writable("k", "bucket://empty/runs/new", 60)
    with pytest.raises(ConfigError, match="k = 'bucket://empty/x': does not exist"):
        check_readable("k", "bucket://empty/x", 60)


def test_a_directory_need_not_exist_to_be_writable(tmp_path: Path) -> None:
    check_writable("k", str(tmp_path / "a/b/c"), 60)
    check_file_writable("k", str(tmp_path / "a/b.json"), 60)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="must name a file, not a directory"):
        check_file_writable("k", str(tmp_path), 60)


def test_an_os_error_at_start_is_a_message_with_its_key(tmp_path, monkeypatch) -> None:
    """/proc looks writable to root, and takes no file."""
    monkeypatch.chdir(tmp_path)
    for key in ("rlax.state_dir", "base_output_directory"):
        for command in (("train",), ("check",), ("check", "--fast")):
            result = rlax(*command, TESTING, f"{key}=/proc/rlax")
            assert result.exit_code == 2
            assert result.stderr.startswith(f"error: {key} = '/proc/rlax': cannot be written")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value", "opened"),
    [
        ("base_output_directory", "runs", "runs/testing"),
        ("rlax.state_dir", "state", "state"),
        ("rlax.weights.path", "weights", "weights"),
    ],
)
def test_a_directory_that_others_can_write_to_is_an_error_of_its_key(
    key: str, value: str, opened: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / opened
    place.mkdir(parents=True)
    place.chmod(0o775)
    for command in ("check", "train"):
        result = rlax(command, TESTING, f"{key}={value}")
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {key} = '{value}': {place} has mode 0775, so ")
    assert not list(place.iterdir())
    place.chmod(0o755)
    assert rlax("check", "--fast", TESTING, f"{key}={value}").exit_code == 0


def test_a_directory_that_another_process_opens_meanwhile_is_an_error(tmp_path: Path) -> None:
    section, maxtext = load_section(TESTING, [f"base_output_directory={tmp_path}"])
    files = RunFiles(tmp_path / "testing")
    make_directories(files, tmp_path / "testing", section, maxtext)
    (tmp_path / "testing").chmod(0o707)
    with pytest.raises(ConfigError, match=r"base_output_directory = .* has mode 0707"):
        make_directories(files, tmp_path / "testing", section, maxtext)


def test_a_pipe_in_the_place_of_a_log_is_an_error(tmp_path: Path) -> None:
    section, maxtext = load_section(TESTING, [f"base_output_directory={tmp_path}"])
    (tmp_path / "testing" / "logs").mkdir(parents=True)
    os.mkfifo(log := tmp_path / "testing" / "logs" / "host-1.log")
    with pytest.raises(ConfigError, match=f"cannot be written: {log}: No such device"):
        make_directories(
            RunFiles(tmp_path / "testing"), tmp_path / "testing", section, maxtext, log.name
        )


def test_places_are_not_looked_at_before_the_run_has_a_name() -> None:
    result = rlax("check", "--fast", TESTING, "run_name=", "base_output_directory=/dev/null")
    assert result.exit_code == 0


def test_memory_that_this_machine_lacks_is_told() -> None:
    config = resolve(DEMO)
    found = examine(config, registry_for(config.section))
    there = psutil.virtual_memory().total
    part = CheckResult(memory={"caches": there // 3 + 1, "weights": 0})

    def told(**maxtext: object) -> list[tuple[str, str]]:
        checked = {"rlax.trainer": CheckResult(), "rlax.rollouts.engine": part}
        given = replace(config, maxtext={**config.maxtext, **maxtext})
        one = replace(found, checked=checked, config=given)
        return [(key, text) for key, text in warnings(one) if "this machine has" in text]

    assert found.workers == 2 and told() == []  # two thirds of it
    part = CheckResult(memory={"caches": there // 2 + 1})
    ((key, text),) = told()
    assert key == "rlax.rollouts.engine" and f"this machine has {in_bytes(there)}" in text
    assert told(hardware="tpu") == []  # whose memory is its own


def test_memory_of_trainer_and_engine_adds_up_where_they_share_a_process() -> None:
    config = resolve(DEMO)
    found = examine(config, registry_for(config.section))
    checked = {
        "rlax.trainer": CheckResult(memory={"parameters": 3, "gradients": 4}),
        "rlax.rollouts.engine": CheckResult(memory={"caches": 5}),
        "rlax.launcher": CheckResult(one_process=True),
    }
    told = explanation(replace(found, checked=checked))["memory_bytes"]
    together = {"rlax.trainer": 7, "rlax.rollouts.engine": 5}
    assert told["trainer and engine together"] == together and len(told) == 3
    apart = explanation(replace(found, checked=checked | {"rlax.launcher": CheckResult()}))
    assert list(apart["memory_bytes"]) == ["rlax.trainer", "rlax.rollouts.engine"]


def test_a_run_that_goes_on_needs_no_weights_to_start_from(tmp_path: Path) -> None:
    section, _ = load_section(TESTING)
    given = {"run_name": "r", "base_output_directory": str(tmp_path / "runs")}
    for key in ("load_parameters_path", "load_full_state_path"):
        with pytest.raises(ConfigError, match=rf"^{key} = '.*/gone': does not exist$"):
            check_places(section, given | {key: f"{tmp_path}/gone"})
    (tmp_path / "runs/r/checkpoints/3").mkdir(parents=True)
    check_places(section, given | {"load_parameters_path": f"{tmp_path}/gone"})


def test_a_run_of_adapters_needs_its_base_whenever_it_starts(tmp_path: Path) -> None:
    section, _ = load_section(TESTING)
    given = {"run_name": "r", "base_output_directory": str(tmp_path / "runs")}
    restored = given | {"lora": {"enable_lora": True, "lora_restore_path": f"{tmp_path}/gone"}}
    with pytest.raises(ConfigError, match=r"^lora\.lora_restore_path = '.*/gone': does not exist$"):
        check_places(section, restored)
    (tmp_path / "runs/r/checkpoints/3").mkdir(parents=True)
    check_places(section, restored)
    with pytest.raises(ConfigError, match=r"^load_parameters_path = '.*/gone': does not exist$"):
        check_places(section, restored | {"load_parameters_path": f"{tmp_path}/gone"})
