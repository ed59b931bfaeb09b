"""The nodes of ``make chaos``: processes that are stopped, killed and started again together."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

from chaos import nodes as of_ray
from chaos.nodes import RayNodes, check_nodes
from chaos.supervised import SupervisedRun
from rlax_plugin.errors import ConfigError, RlaxError

# A process with a child in its session, and below that one with a session of its own.
LAST = "import time; time.sleep(600)"
NODE = f"""
import subprocess, sys
last = [sys.executable, "-c", "{LAST}"]
between = f"import subprocess; subprocess.run({{last}}, start_new_session=True)"
subprocess.run([sys.executable, "-c", between])
"""


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    def lives(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):  # it may end between two looks
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    return [one for one in processes if lives(one)]


def has_begun(run: SupervisedRun) -> bool:
    """True once no process of the node waits for another one to execute its program."""
    return any(one.cmdline()[-1:] == [LAST] for one in run.below("node 1"))


def test_a_node_is_stopped_killed_and_started_again_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_up_node.py").write_text(NODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = SupervisedRun(tmp_path, tmp_path)
    try:
        run.add("node 1", module="made_up_node", node=True, always=True)
        run.start()
        wait_until(lambda: has_begun(run), "all processes of the node")
        halted = run.halt("node 1")
        assert len(halted) == 3
        wait_until(  # a signal takes effect when the process is next scheduled
            lambda: all(one.status() == psutil.STATUS_STOPPED for one in halted), "all stopped"
        )
        for process in halted:
            process.resume()
        run.kill("node 1")
        assert run.ended("node 1")
        wait_until(lambda: not living(halted), "all killed")
        assert not living(run.below("node 1"))
        run.go_on()
        assert run.restarts == {"node 1": 1} and run.crashes == []
        wait_until(lambda: has_begun(run), "all processes of the node again")
        again = run.below("node 1")
        assert len(again) == 3
        left = run.close(0.0)  # the one in a session of its own, as a worker is
        assert len(left) == 1 and "time.sleep(600)" in left[0]
    finally:
        run.end_nodes()
    wait_until(lambda: not living(again), "all killed at the end")
    run.go_on()
    assert run.restarts == {}


def test_nodes_need_ray_and_a_place_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert check_nodes(3, 3) == 3
    with pytest.raises(ConfigError, match=r"--ray-nodes = 2: must be at least the 3 workers of"):
        check_nodes(2, 3)
    with pytest.raises(ConfigError, match="needs a launcher that says how many workers it starts"):
        check_nodes(2, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package ray, which is not installed"):
        check_nodes(2, 2)


def test_a_head_that_does_not_start_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_node.py").write_text("raise SystemExit('the port is taken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(of_ray, "_MODULE", "broken_node")
    run = SupervisedRun(tmp_path, tmp_path)
    with ExitStack() as stack:
        nodes = RayNodes(run, 1, stack)
        directory = Path(nodes.environment["RAY_TMPDIR"])
        assert directory.is_dir() and (tmp_path / "ray-token").stat().st_mode & 0o777 == 0o600
        with pytest.raises(
            RlaxError,
            match=r"the head node of Ray did not start: the port is taken \(see .*\.out\)$",
        ):
            nodes.start({})
    assert not directory.exists() and run.restarts == {}
