"""The lease of a run's directory: who gets it, and how a process finds that it has lost it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import object_store  # noqa: F401  it makes objects:// known
import pytest
import yaml
from command_line import rlax
from waiting import wait_until

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.exhausted import may_pass
from rlax_plugin.run.start import lease as lease_module
from rlax_plugin.run.start.holder import this_process
from rlax_plugin.run.start.lease import FOLDER, held
from rlax_plugin.run.start.run_directory import usual_state_directory

CONFIG = Path(__file__).parents[3] / "configs/testing.yml"
HELPERS = Path(__file__).parents[3] / "helpers"
HOLDER = """
import sys; sys.path.insert(0, sys.argv[1]); import brief_lease
from pathlib import Path
import object_store  # it makes objects:// known
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.start.lease import held
files = RunFiles(sys.argv[2])
with held(files, Path(sys.argv[3]), print) as lease:
    print("held", flush=True)
    for line in sys.stdin:
        try:
            files.put(line.strip(), b"of the first")
        except Exception as error:
            print(type(error).__name__, error, flush=True)
        else:
            print("written", flush=True)
"""


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A living holder is seen within a second; a silent one is waited for as a test says."""
    monkeypatch.setattr(lease_module, "EVERY_S", 0.2)
    monkeypatch.setattr(lease_module, "_LOOK_S", 0.05)
    monkeypatch.setattr(lease_module, "STALE_S", 300.0)


@pytest.fixture(params=["disk", "objects"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> RunFiles:
    (tmp_path / "run").mkdir()
    return RunFiles(f"objects:/{tmp_path}/run" if request.param == "objects" else tmp_path / "run")


ON_DISK = pytest.mark.parametrize(
    "files", ["disk", pytest.param("objects", marks=pytest.mark.long)], indirect=True
)


@pytest.fixture
def states(tmp_path: Path) -> list[Path]:
    """State directories, as of several machines."""
    found = [tmp_path / f"state-{number}" for number in range(9)]
    for one in found:
        one.mkdir()
    return found


class Other:
    """Another process that holds a run."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def writes(self, name: str) -> str:
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        return self.says()


@contextmanager
def other(files: RunFiles, state_dir: Path) -> Iterator[Other]:
    command = [sys.executable, "-c", HOLDER, str(HELPERS), files.url, str(state_dir)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        try:
            found = Other(process)
            assert found.says() == "held"
            yield found
        finally:
            process.kill()


def silent(line: str) -> None:
    raise AssertionError(f"nothing is waited for, but it says {line!r}")


def put_record(files: RunFiles, number: int = 1, **news: object) -> None:
    files.put_json(f"{FOLDER}/{number:08d}.json", this_process() | {"beats": 0} | news)


@ON_DISK
def test_a_living_holder_is_named_whatever_its_state_directory(files, states):
    lines: list[str] = []
    with other(files, states[0]) as first:
        for state_dir, said in ((states[0], 0), (states[1], 1)):
            with pytest.raises(ConfigError) as refused, held(files, state_dir, lines.append):
                pass
            assert f"already used by process {first.process.pid} on {os.uname().nodename}" in str(
                refused.value
            )
            assert "UTC): end that first, or choose another run_name" in refused.value.reason
            assert may_pass(refused.value)
            assert len(lines) == said  # the lock of its own state directory is known at once
        assert first.writes("one") == "written"
        first.process.communicate()
    with held(files, states[1], silent):  # it has ended, and said so
        assert files.names(FOLDER) == ["00000002.json"]


def test_after_a_kill_nothing_is_waited_for_on_this_machine(files, states):
    state = int(files.is_local)  # with the state directory of the killed one, and with another
    with other(files, states[0]) as first:
        first.process.kill()
        first.process.wait()
        with held(files, states[state], silent):
            files.put("one", b"")
            assert files.names(FOLDER) == ["00000002.json"]


def test_a_container_that_is_started_again_waits_for_nothing(files, states):
    with held(files, states[0], silent):
        pass
    record = files.get_json(f"{FOLDER}/00000001.json")
    assert record.pop("ended") and record["lock"]
    # Its process ids are in another namespace: this one may belong to another process there.
    put_record(files, **record | {"boot": "another namespace", "host": "of the container"})
    with held(files, states[0], silent):
        pass


def test_a_silent_holder_elsewhere_is_waited_for_and_replaced(files, states, monkeypatch):
    monkeypatch.setattr(lease_module, "STALE_S", 0.3)
    put_record(files, 7, host="far", pid=12, boot="another")
    lines: list[str] = []
    with held(files, states[0], lines.append):
        assert files.names(FOLDER) == ["00000008.json"]
    (line,) = lines
    assert "held by process 12 on far (since " in line and "continues in 0.3 s" in line


def test_a_holder_that_renews_its_lease_meanwhile_is_not_replaced(files, states):
    put_record(files, host="far", pid=12, boot="another")

    def renewed(line: str) -> None:
        put_record(files, host="far", pid=12, boot="another", beats=1)

    with pytest.raises(ConfigError, match="process 12 on far"), held(files, states[0], renewed):
        pass
    assert files.get_json(f"{FOLDER}/00000001.json")["beats"] == 1


@pytest.mark.parametrize("text", [b"", b"[]", b'{"pid": "x"', b'{"started_s": 1e300, "host": 1}'])
def test_a_malformed_lease_is_one_of_another_process(files, states, monkeypatch, text):
    monkeypatch.setattr(lease_module, "STALE_S", 0.1)
    files.put(f"{FOLDER}/00000001.json", text)
    files.put(f"{FOLDER}/notes.txt", text)
    lines: list[str] = []
    with held(files, states[0], lines.append):
        assert "00000002.json" in files.names(FOLDER)
    assert lines and "held by another process;" in lines[0]


def test_one_of_many_gets_it(files, states):
    begin, outcomes = threading.Barrier(len(states)), []
    won, ends = threading.Event(), threading.Event()

    def take(state_dir: Path) -> None:
        own = RunFiles(files.url)
        begin.wait(60)
        try:
            with held(own, state_dir, lambda line: None) as lease:
                own.put("winner", state_dir.name.encode())
                won.set()
                ends.wait(60)
                lease.check()
                outcomes.append("won")
        except ConfigError:
            outcomes.append("refused")

    threads = [threading.Thread(target=take, args=[one]) for one in states]
    for one in threads:
        one.start()
    won.wait(60)
    wait_until(lambda: len(outcomes) == len(states) - 1, "that the others are refused")
    ends.set()
    for one in threads:
        one.join(60)
    assert sorted(outcomes) == ["refused"] * (len(states) - 1) + ["won"]


@ON_DISK
def test_a_frozen_holder_that_was_replaced_writes_nothing_more(files, states, monkeypatch):
    monkeypatch.setattr(lease_module, "STALE_S", 0.5)
    with other(files, states[0]) as first:
        first.process.send_signal(signal.SIGSTOP)
        with held(files, states[1], lambda line: None) as lease:
            files.put("one", b"of the second")
            first.process.send_signal(signal.SIGCONT)
            said = first.writes("one")
            assert said.startswith("LostLeaseError ") and said.endswith("if the other one trains")
            assert f"was taken over by process {os.getpid()} on " in said
            first.process.communicate()
            lease.check()
            assert files.get("one") == b"of the second"
        assert files.get_json(f"{FOLDER}/00000002.json")["ended"]


@pytest.mark.parametrize("change", ["removed", "moved", "emptied", "replaced"])
def test_a_directory_that_is_gone_is_not_made_again(tmp_path, states, change):
    files, run = RunFiles(tmp_path / "run"), tmp_path / "run"
    run.mkdir()
    told = threading.Event()
    with held(files, states[0], silent) as lease:
        lease.on_lost = told.set
        files.put("journal/one", b"")
        if change == "moved":
            run.rename(tmp_path / "elsewhere")
        elif change == "emptied":
            for one in run.iterdir():
                shutil.rmtree(one)
        else:
            shutil.rmtree(run)
        if change == "replaced":
            put_record(RunFiles(run), host="far", pid=12, incarnation="another")
        before = sorted(tmp_path.rglob("*"))
        for write in (files.put, files.create):
            with pytest.raises(RlaxError) as lost:
                write("journal/two", b"")
        with pytest.raises(RlaxError):
            files.delete("journal")
        assert told.wait(60) and lease.lost
    assert sorted(tmp_path.rglob("*")) == before
    assert isinstance(lost.value, ConfigError) and not may_pass(lost.value)
    expected = f"{run} was removed while the run trained"
    if change == "moved":
        expected = f"{run} was moved to {tmp_path / 'elsewhere'} while the run trained"
    assert expected in str(lost.value)


def test_objects_that_are_gone_are_not_made_again(tmp_path, states):
    files = RunFiles(f"objects:/{tmp_path}/run")
    with held(files, states[0], silent) as lease:
        files.put("journal/one", b"")
        lease.check_known()  # asks nobody
        files.delete("")
        with pytest.raises(ConfigError, match="run was removed while the run trained"):
            files.put("journal/two", b"")
        with pytest.raises(ConfigError):
            lease.check_known()
    assert files.names("") == []


def doctor(files: RunFiles) -> str:
    result = rlax("doctor", files.url)
    assert result.exit_code == 2
    return result.output.replace("\n", " ")


def test_a_trainer_without_its_directory_is_seen(files, states, tmp_path):
    local = files.is_local
    state_dir = states[0] if local else usual_state_directory(files)
    state_dir.mkdir(parents=True, exist_ok=True)

    with held(files, state_dir, silent):
        assert "is not a run directory: it has no config.yml" in doctor(files)
        if local:
            shutil.rmtree(tmp_path / "run")
        else:
            files.delete("")
        removed = f"was removed while process {os.getpid()} trains the run, which ends"
        assert removed in doctor(files)
    if local:
        assert "is not a run directory: there is no such directory" in doctor(files)


def test_a_trainer_without_its_state_directory_is_seen(tmp_path, states):
    config = yaml.safe_load(CONFIG.read_bytes())
    config["rlax"]["state_dir"] = str(states[0])
    files = RunFiles(tmp_path / "run")
    files.put("config.yml", yaml.safe_dump(config).encode())

    with held(files, states[0], silent):
        shutil.rmtree(states[0])
        assert f"({states[0]}), which was removed while process {os.getpid()} trains" in doctor(
            files
        )
    assert f"has no state directory on this machine ({states[0]})" in doctor(files)


def test_a_store_that_fails_for_a_while_does_not_take_the_lease(files, states, monkeypatch, caplog):
    failing = threading.Event()

    def get(self: RunFiles, name: str) -> bytes:
        if failing.is_set():
            raise RlaxError("the store is down")
        return found(self, name)

    with held(files, states[0], silent) as lease:
        found = RunFiles.get
        monkeypatch.setattr(RunFiles, "get", get)
        failing.set()
        wait_until(lambda: "cannot be renewed: the store is down" in caplog.text, "the warning")
        with pytest.raises(RlaxError, match="is down"):
            files.put("one", b"")
        lease.check(300.0)  # it was there not long ago
        failing.clear()
        files.put("one", b"")
        beats = files.get_json(f"{FOLDER}/00000001.json")["beats"]
        wait_until(lambda: files.get_json(f"{FOLDER}/00000001.json")["beats"] > beats, "a beat")
    assert json.loads(files.get(f"{FOLDER}/00000001.json"))["ended"]
