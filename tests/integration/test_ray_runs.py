"""Runs whose workers are actors of a Ray cluster, of which nodes end, freeze and leave."""

import json
import os
import re
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import psutil
import pytest
from other_user import readable_by_stranger
from planted import plant
from processes import python_path
from ray_nodes import RESOURCE, RayNodes, ray_nodes
from runs import HELPERS, Run, alive, command, held
from waiting import wait_until

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


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with (
        tempfile.TemporaryDirectory(prefix="rlax-", dir="/tmp", ignore_cleanup_errors=True) as own,
        ray_nodes(Path(own), 3) as nodes,
    ):
        yield nodes


def launcher(nodes: RayNodes, pool: str, least: int, most: int) -> str:
    pools = [{"name": pool, "min": least, "max": most, "resources": {RESOURCE: 1}}]
    options = {
        "name": "ray",
        "address": nodes.address,
        "token_file": str(nodes.token_file),
        "pools": pools,
        "scale_up_s": 1.0,
        "scale_down_s": 1.0,
    }
    return f"rlax.launcher={json.dumps(options)}"


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


def joined(run: Run, name: str) -> int:
    """The number of processes of a worker that have received weights."""
    log = run.dir / "logs" / f"{name}.log"
    return log.read_text().count(f"worker {name} serves on") if log.exists() else 0


def elsewhere_s(run: Run, name: str, before: int) -> float:
    """Waits until a worker has registered once more and a step was trained; returns the seconds."""
    began = time.monotonic()
    run.until(lambda: joined(run, name) > before, f"worker {name} again")
    took = time.monotonic() - began
    steps = len(run.steps())
    run.until(lambda: len(run.steps()) > steps + 1, "further steps")
    return took


def ended(run: Run) -> None:
    """Ends a run by Ctrl-C, and checks its records."""
    run.process.send_signal(signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    report = audit(RunFiles(run.dir))
    assert report.violation is None, report.violation


def test_nodes_end_freeze_and_leave_while_the_trainer_goes_on(nodes, tmp_path, capfd):
    run = Run(tmp_path, *ENDLESS, SLOW, launcher(nodes, "moved", 2, 2))
    both = ("moved-0", "moved-1")
    run.until(lambda: all(joined(run, name) for name in both), "two workers with weights")
    run.until(lambda: len(run.steps()) > 2, "steps")
    took: dict[str, float] = {}

    nodes.kill(workers("moved")["moved-0"].pid)
    took["killed"] = elsewhere_s(run, "moved-0", 1)
    nodes.add()

    frozen = nodes.freeze(workers("moved")["moved-1"].pid)
    twin = next(one for one in frozen if "serve" in command(one))
    took["frozen"] = elsewhere_s(run, "moved-1", 1)
    for process in frozen:
        with suppress(psutil.NoSuchProcess):  # those before have ended it
            process.send_signal(signal.SIGCONT)
    run.until(lambda: not alive([twin]), "its end")
    nodes.add()

    left = nodes.drain(workers("moved")["moved-0"].pid, 60)
    took["drained"] = elsewhere_s(run, "moved-2", 0)
    run.until(lambda: "moved-0" not in workers("moved"), "the end of the drained worker")
    for process in workers("moved").values():
        assert nodes.under(process.pid)[0].node_id != left
    assert run.process.poll() is None
    ended(run)
    wait_until(lambda: not workers("moved"), "the end of the workers")
    with capfd.disabled():
        print("seconds until a worker runs elsewhere:", {k: round(v, 1) for k, v in took.items()})


def test_workers_follow_the_load(nodes, tmp_path, monkeypatch):
    nodes.add(2)  # the test before has left some that take no worker
    monkeypatch.setenv("PYTHONPATH", python_path(HELPERS))
    released = tmp_path / "released"
    run = Run(
        tmp_path,
        *ENDLESS,
        "rlax.rollouts.engine.token_s=0.05",
        "rlax.rollouts.slots=4",
        launcher(nodes, "scaled", 1, 3),
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
