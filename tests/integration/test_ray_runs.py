"""Runs whose workers are actors of a Ray cluster that the trainer starts.

``tests/chaos`` has nodes of a cluster that end, freeze and leave.
"""

from __future__ import annotations

import os
import re
import signal
import stat
from contextlib import suppress
from pathlib import Path

import grpc
import psutil
import pytest
from other_user import readable_by_stranger
from planted import plant
from processes import python_path
from runs import HELPERS, Run, command, held

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit

ENDLESS = (
    "steps=100000",
    "rlax.evaluation.problems=0",
    "rlax.curation.filters=[]",  # what it learns too well is no end
)
SLOW = "rlax.rollouts.engine.token_s=0.01"
OF_CLUSTER = re.compile(r"/tmp/rlax-ray-[^/ ]+")
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def workers(pool: str) -> dict[str, psutil.Process]:
    """The newest process of each worker of a pool, by its name."""
    found: dict[str, psutil.Process] = {}
    for process in psutil.process_iter():
        words = command(process)
        if "serve" in words and "--incarnation" in words:
            name = words[words.index("--name") + 1]
            with suppress(psutil.Error):  # it has ended since
                newer = name not in found or process.create_time() > found[name].create_time()
                if name.startswith(f"{pool}-") and newer:
                    found[name] = process
    return found


def ended(run: Run) -> None:
    """Ends a run by Ctrl-C, and checks its records."""
    run.process.send_signal(signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    report = audit(RunFiles(run.dir))
    assert report.violation is None, report.violation


def test_workers_follow_the_load(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", python_path(HELPERS))
    released = tmp_path / "released"
    run = Run(
        tmp_path,
        *ENDLESS,
        "rlax.rollouts.engine.token_s=0.05",
        "rlax.rollouts.slots=4",
        "rlax.launcher={name: ray, scale_up_s: 1.0, scale_down_s: 1.0, "
        "pools: [{name: scaled, min: 1, max: 3}]}",
        *held({40: released}),
    )
    run.until(lambda: len(workers("scaled")) == 3, "three workers")
    run.until(lambda: len(workers("scaled")) == 1, "one worker again")
    released.touch()
    run.until(lambda: len(run.steps()) > 42, "steps with one worker")
    ended(run)
    changes = [
        event
        for segment, _ in journal.read(RunFiles(run.dir))
        for event in segment.events
        if isinstance(event, ev.Resized)
    ]
    sizes = [(one.before, one.workers) for one in changes]
    assert sizes[:4] == [(1, 2), (2, 3), (3, 2), (2, 1)], sizes
    assert all("samples were under way for" in one.reason for one in changes), changes


def test_a_cluster_of_its_own_is_of_this_machine_takes_a_token_and_ends_with_its_trainer(tmp_path):
    trap = plant(tmp_path)
    run = Run(tmp_path, *ENDLESS, SLOW, "rlax.launcher={name: ray, pools: [{name: own, min: 2}]}")
    run.until(lambda: len(run.steps()) > 2 and len(workers("own")) == 2, "steps with two workers")
    below = psutil.Process(run.process.pid).children(recursive=True)
    listening: list[tuple[str, int, str]] = []
    for process in below:
        with suppress(psutil.NoSuchProcess):
            name, connections = process.name(), process.net_connections("tcp")
            open_ = [one.laddr for one in connections if one.status == psutil.CONN_LISTEN]
            listening += [(address.ip, address.port, name) for address in open_]
    assert {ip.removeprefix("::ffff:") for ip, _, _ in listening} == {"127.0.0.1"}, listening
    (port,) = [port for _, port, name in listening if name == "gcs_server"]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
        with pytest.raises(grpc.RpcError) as refused:
            ask(b"", timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    (named,) = {one for process in below for one in OF_CLUSTER.findall(" ".join(command(process)))}
    directory = Path(named)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    sockets = [path for path in directory.rglob("*") if path.is_socket()]
    assert len(sockets) >= 2  # so Ray has no other directory
    if os.geteuid() == 0:
        assert readable_by_stranger(directory, *directory.rglob("*"))["read"] == []
    assert not trap.exists(), trap.read_text()
    run.process.kill()
    run.process.wait(60)
    _, left = psutil.wait_procs(below, 60)
    assert not left
    assert audit(RunFiles(run.dir)).violation is None
