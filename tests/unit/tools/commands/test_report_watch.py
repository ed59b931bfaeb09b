"""``rlax report --watch``: when a page is written again, and when it ends."""

import json
import os
import socket
import threading
from pathlib import Path

import psutil
from histories import History
from typer.testing import CliRunner

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.commands.report import watch
from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.write import ReportPage

RELOADS = '<body data-reload-s="10.0" data-written="'


def lock(directory: Path, pid: int, host: str = "") -> None:
    """Writes the lock of a process that trains a run, or has trained it."""
    started_s = psutil.Process().create_time() if pid == os.getpid() else 0.0
    document = {"host": host or socket.gethostname(), "pid": pid, "started_s": started_s}
    (directory / ".lock").write_text(json.dumps(document))


def test_a_run_has_ended_if_its_process_has(tmp_path):
    files, run = RunFiles(tmp_path), RunData("run", "run")
    assert not watch.has_ended(files, run)  # it may just be starting
    lock(tmp_path, os.getpid())
    run.summary = {"complete": True, "steps": 3}  # of an earlier process
    assert not watch.has_ended(files, run)
    lock(tmp_path, 2**22 + 1)  # no system has so many processes
    run.summary = {}
    assert watch.has_ended(files, run)
    lock(tmp_path, 2**22 + 1, host="another")
    assert not watch.has_ended(files, run)
    run.summary, run.metrics = {"complete": True, "steps": 3}, {"step": [1.0, 2.0, 3.0]}
    assert watch.has_ended(files, run)
    run.metrics["step"].append(4.0)  # it goes on after what was its last step
    assert not watch.has_ended(files, run)


def test_a_page_is_written_again_only_if_the_run_has_written_more(tmp_path, monkeypatch):
    files = RunFiles(tmp_path / "run")
    History().write(files)
    lines = files.get("metrics.jsonl").splitlines(keepends=True)
    files.put("metrics.jsonl", lines[0])
    lock(tmp_path / "run", os.getpid())
    written: list[int] = []
    pauses = iter(
        [
            lambda: None,
            lambda: files.put("metrics.jsonl", b"".join(lines)),
            lambda: None,
            lambda: files.put_json("summary.json", {"complete": True, "steps": 3}),
        ]
    )
    write, own, wait = ReportPage.write, threading.current_thread(), threading.Event.wait

    def counted(page: ReportPage, *arguments: object):
        data = write(page, *arguments)
        written.append(len(data.steps))
        return data

    def pause(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread() is not own:  # such as one that an earlier test left
            return wait(event, timeout)
        next(pauses, lambda: lock(tmp_path / "run", 2**22 + 1))()
        return False

    monkeypatch.setattr(ReportPage, "write", counted)
    monkeypatch.setattr(watch.threading.Event, "wait", pause)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--watch"])
    assert result.exit_code == 0, result.output
    assert written == [1, 3, 3, 3]  # at once; two steps; the summary; the end of the process
    page = (tmp_path / "run/report.html").read_text()
    assert "<body>" in page and 'id="state">complete<' in page


def test_ctrl_c_leaves_a_page_that_does_not_reload(tmp_path, monkeypatch):
    History().write(RunFiles(tmp_path))
    path = tmp_path / "report.html"

    def interrupt(event: threading.Event, timeout: float | None = None) -> bool:
        assert RELOADS in path.read_text()
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.threading.Event, "wait", interrupt)
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--watch"])
    assert result.exit_code == 130
    assert result.output.splitlines()[-1] == (
        "stopped watching; the page remains and does not reload any more"
    )
    assert "<body>" in path.read_text()
