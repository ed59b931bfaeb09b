"""The handle of a run that exists, and what it reads of the records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from histories import History

import rlax_plugin
from rlax_plugin.base.errors import CommandError, ConfigError, DeadlineError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.start.holder import LOCK, holder
from rlax_plugin.run.start.run_directory import locked
from rlax_plugin.run.state import journal
from rlax_plugin.tools.scripting import handle
from rlax_plugin.tools.scripting.processes import Started
from rlax_plugin.tools.scripting.progress import MetricsReader, Progress, _Lines

CONFIG = """
run_name: mine
base_output_directory: runs
steps: 8
rlax:
  plugins: [there_is_no_such_module]
  prompt_source: {name: numbers}
  rewards: [{name: even}]
  objective: {mini_batches: 2}
"""


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """A run of three steps that has not ended, and a plug-in that nothing may import."""
    found = RunFiles(tmp_path / "runs/mine")
    History().write(found)
    found.put("config.yml", CONFIG.encode())
    lines = [{"step": 1, "reward/mean": 0.5}, {"step": 2, "train/loss": 2, "reward/mean": 1}]
    found.put("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    return found


def test_metrics_are_a_table_with_a_row_for_each_step(files: RunFiles) -> None:
    found = rlax_plugin.open(files.url).metrics()
    assert found.to_pydict() == {
        "step": [1, 2],
        "reward/mean": [0.5, 1.0],
        "train/loss": [None, 2.0],
    }
    assert found.schema.types == [pa.int64(), pa.float64(), pa.float64()]
    files.delete("metrics.jsonl")
    assert rlax_plugin.open(files.url).metrics().to_pydict() == {"step": []}


def test_each_sample_is_in_the_table_once(files: RunFiles) -> None:
    run = rlax_plugin.open(files.url)
    found = run.samples()
    keys = list(zip(*(found[name].to_pylist() for name in ("group", "sample")), strict=True))
    assert len(keys) == len(set(keys)) == 18
    # Group 3 was accepted at step 1 and trained at step 2.
    states = run.samples(["state", "step"]).filter(pa.compute.equal(found["group"], 3))
    assert set(map(tuple, (row.values() for row in states.to_pylist()))) == {("trained", 2)}
    few = run.samples(["completion", "reward"], steps=range(2, 3))
    assert few.column_names == ["completion", "reward"]
    assert few.num_rows == sum(step == 2 for step in found["step"].to_pylist()) > 0
    with pytest.raises(ConfigError, match="did you mean 'reward'"):
        run.samples(["rewards"])
    files.put(journal.samples_name(2), b"PAR1")
    with pytest.raises(RlaxError, match="is damaged"):
        run.samples()
    files.delete("samples")
    assert run.samples(["reward"]).num_rows == run.samples().num_rows == 0


def test_the_status_of_a_run_is_read_from_its_records(
    files: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rlax_plugin.open(files.url)
    assert run.status == "stopped" and run.name == "mine" and run.config is None
    assert run.progress == Progress("mine", "stopped", 2, 4, (0.5, 1.0))
    assert run.wait(show=False) == run.stop() == "stopped"
    with locked(tmp_path / "runs/mine"):
        assert run.status == "running"
        assert run.wait(timeout_s=0, show=False) == "running"
        with pytest.raises(ConfigError, match="already used"), locked(tmp_path / "runs/mine"):
            pass
        found = holder(tmp_path / "runs/mine")
        assert found is not None and found.pid == os.getpid()
    document = {"host": os.uname().nodename, "pid": os.getpid(), "started_s": 1.0}
    (tmp_path / "runs/mine" / LOCK).write_text(json.dumps(document))  # another process had the id
    assert run.status == "stopped"
    files.put_json("summary.json", {"complete": True})
    assert run.status == "complete"
    monkeypatch.chdir(tmp_path.parent)  # the handle still finds the run
    assert run.metrics().num_rows == 2
    assert "there_is_no_such_module" not in sys.modules


def test_a_running_process_is_stopped_as_by_ctrl_c(files: RunFiles, tmp_path, monkeypatch) -> None:
    script = (
        "import signal, sys, time; from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # the tests may ignore it
        "from rlax_plugin.run.start.run_directory import locked\n"
        "try:\n"
        "    with locked(Path(sys.argv[1])):\n"
        "        print(flush=True); time.sleep(100)\n"
        "except KeyboardInterrupt:\n"
        "    Path(sys.argv[1], 'stopped').touch()\n"
    )
    directory = tmp_path / "runs/mine"
    with psutil.Popen(
        [sys.executable, "-c", script, str(directory)], stdout=-1, text=True
    ) as process:
        process.stdout.readline()
        run = rlax_plugin.open(files.url)
        assert run.status == "running"
        assert run.stop(60) == "stopped"
        assert (directory / "stopped").exists()
    with locked(directory):
        monkeypatch.setattr(handle.Elsewhere, "interrupt", lambda self: None)
        with pytest.raises(DeadlineError, match="stopping mine took longer"):
            run.stop(0.01)


def test_new_lines_of_a_file_are_read_once_and_a_cut_file_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    reader.read()
    assert reader.step == 0
    path.write_text('{"step": 1, "reward/mean": 0.5, "time/step_s": 2}\n{"step": 2, "re')
    reader.read()
    assert (reader.step, list(reader.rewards), reader.step_s) == (1, [0.5], 2)
    with path.open("a") as file:
        file.write('ward/mean": 0.75}\n{"step": 3}\n')
    reader.read()
    reader.read()
    assert (reader.step, list(reader.rewards)) == (3, [0.5, 0.75])
    path.write_text('{"step": 1, "reward/mean": 0.5}\n')
    reader.read()
    assert (reader.step, list(reader.rewards)) == (1, [0.5])
    path.write_text("")
    reader.read()
    assert (reader.step, list(reader.rewards)) == (0, [])


def test_progress_in_words_and_pictures() -> None:
    progress = Progress("a", "running", 25, 100, (0.25, 0.5), 2.0, "evaluating [red]")
    assert progress.line() == "a: running, step 25 of 100, reward 0.500, 150 s left"
    page = progress.panel()._repr_mimebundle_(include=(), exclude=())
    assert "evaluating [red]" in page["text/plain"] and "reward ▁█" in page["text/plain"]
    assert page["text/html"].startswith("<pre")


def test_plain_lines_are_as_rare_as_they_should_be() -> None:
    now, lines = [0.0], []
    shown = _Lines(lines.append, clock=lambda: now[0])
    for step, at in ((1, 0.0), (2, 5.0), (3, 11.0), (4, 12.0)):
        now[0] = at
        shown.show(Progress("a", "running", step, 4))
    shown.show(Progress("a", "complete", 4, 4))
    shown.show(Progress("a", "complete", 4, 4))
    assert lines == [
        "a: running, step 1 of 4",
        "a: running, step 3 of 4",
        "a: complete, step 4 of 4",
    ]


def test_an_error_of_a_command_is_its_own_line(files: RunFiles) -> None:
    from rlax_plugin.tools.scripting.processes import failure

    output = "warning: a\nerror: rlax.seed = x: must be a number\nalso rlax.y = 1: wrong\n"
    assert failure(output, 2, "l") == "rlax.seed = x: must be a number\nalso rlax.y = 1: wrong"
    assert failure("", -9, "a.log") == "the signal SIGKILL ended it; its output is in a.log"
    assert failure("Traceback\nKeyError: 1\n", 1, "") == "it ended with status 1: KeyError: 1"
    run = rlax_plugin.open(files.url)
    with pytest.raises(ConfigError, match="must be a dict of keys"):
        run.evaluate(config=["a"])  # pyright: ignore
    error = CommandError("eval", 2, "no")
    assert (error.status, str(error)) == (2, "rlax eval failed: no")


def test_damaged_records_are_one_error_and_no_progress(files: RunFiles) -> None:
    """A line that is damaged is left out of the progress, which ``wait`` shows."""
    files.put("metrics.jsonl", b'{"step": 1}\n{"st\n[]\n\xff\n{"step": "x"}\n{"step": 3}\n')
    run = rlax_plugin.open(files.url)
    assert run.progress.step == 3 and run.wait(0, show=False) == "stopped"
    for content in (b'{"step": 1, "a": "b"}\n', b'{"step": 1, "\xff": 1}\n', b'{"step": "x"}\n'):
        files.put("metrics.jsonl", content)
        with pytest.raises(RlaxError, match=r"^metrics.jsonl is damaged: "):
            run.metrics()
    files.put("summary.json", b"[1]")
    assert run.status == "stopped"


def test_a_log_that_is_gone_or_moved_away_from_does_not_end_the_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as the kernel of a notebook does
    started = Started(Path("no.yml"), Path("train.log"))
    monkeypatch.chdir(tmp_path / "other")
    assert started.ended(60)
    assert "\x1b" not in (tmp_path / "train.log").read_text()
    assert "no.yml" in str(started.error()) and "no.yml" in started.last_line()
    (tmp_path / "train.log").unlink()
    assert started.last_line() == "" and "it ended with status" in str(started.error())
    with pytest.raises(ConfigError, match=r"nowhere/train.log cannot be written: No such file"):
        Started(Path("no.yml"), Path("nowhere/train.log"))


def test_a_run_that_a_script_in_the_background_starts_can_be_interrupted(tmp_path: Path) -> None:
    """A shell has such a script ignore SIGINT, and a child process inherits this."""
    code = (
        "import signal; from rlax_plugin.tools import cli; "
        "cli.main = lambda: print(signal.getsignal(signal.SIGINT).__name__); "
        "from rlax_plugin.tools.scripting import child; child.main()"
    )
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", code]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"default_int_handler\n"


def test_a_forked_process_neither_holds_the_run_nor_waits_for_it(tmp_path: Path) -> None:
    """The run ends when its standard input does, which a fork keeps open; so a process forks."""
    code = """if True:
        import os
        from pathlib import Path
        from rlax_plugin.base.errors import RlaxError
        from rlax_plugin.tools.scripting.processes import Started

        before = len(os.listdir("/proc/self/fd"))
        started = Started(Path("no.yml"), Path("train.log"))
        if (forked := os.fork()) == 0:
            for call in (lambda: started.ended(60), started.interrupt):
                try:
                    call()
                    os._exit(99)
                except RlaxError as error:
                    assert f"started by process {os.getppid()}" in str(error)
            os._exit(len(os.listdir("/proc/self/fd")) - before)
        print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]), started.ended(60))
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.check_output(command, cwd=tmp_path, text=True) == "0 True\n"
