"""A Ray cluster of several nodes on this machine, each of which a test can end, freeze or drain."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from processes import python_path
from runs import HELPERS

RESOURCE = "worker"
"""The resource of which each node but the head has one."""

_MEMORY = 80 << 20  # bytes of each node's object store: nothing is kept there
_HEALTH = {  # a node that does not answer is dead after 1.5 s, and not after 30
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


class RayNodes:
    """The nodes of a cluster; their processes are ended by their ids, never by name.

    Attributes:
      address: host:port of the head.
      token_file: with the token without which nobody joins.
    """

    def __init__(self, token_file: Path):
        from ray.cluster_utils import Cluster

        self.token_file = token_file
        head = {"num_cpus": 0, "object_store_memory": _MEMORY, "include_dashboard": False}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**head, "_system_config": _HEALTH}
        )
        self.address = str(self._cluster.address)

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            node: Any = {"num_cpus": 1, "object_store_memory": _MEMORY, "resources": {RESOURCE: 1}}
            self._cluster.add_node(**node)  # returns once it has joined

    def under(self, pid: int) -> tuple[Any, list[psutil.Process]]:
        """Returns the node of a worker, and the node's raylet with the processes below it."""
        above = {one.pid for one in psutil.Process(pid).parents()}
        for node in self._cluster.list_all_nodes():
            for raylet in node.all_processes.get("raylet", []):
                if raylet.process.pid in above:
                    found = psutil.Process(raylet.process.pid)
                    return node, [found, *found.children(recursive=True)]
        raise AssertionError(f"process {pid} is below no node")

    def kill(self, pid: int) -> None:
        """Kills the node of a worker: the raylet and all processes below it, as a lost machine."""
        for process in self.under(pid)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def freeze(self, pid: int) -> list[psutil.Process]:
        """Stops all processes of a worker's node, as a machine that is paused."""
        processes = self.under(pid)[1]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        return processes

    def drain(self, pid: int, seconds: float) -> str:
        """Marks the node of a worker as one that ends soon; returns its id."""
        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        node, _ = self.under(pid)
        why = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        until_ms = int((time.time() + seconds) * 1000)
        accepted = GcsClient(address=self.address).drain_node(node.node_id, why, "test", until_ms)
        assert accepted[0] if isinstance(accepted, tuple) else accepted
        return str(node.node_id)

    def end(self) -> None:
        for node in self._cluster.list_all_nodes():
            for processes in node.all_processes.values():
                for one in processes:
                    with suppress(ProcessLookupError):
                        os.kill(one.process.pid, signal.SIGCONT)
        self._cluster.shutdown()


@contextmanager
def ray_nodes(directory: Path, count: int) -> Iterator[RayNodes]:
    """A cluster with a head, on which no worker fits, and nodes for one worker each.

    Args:
      directory: with a short name, because Ray makes sockets below it.
    """
    token_file = directory / "ray-token"
    token_file.touch(0o600)
    token_file.write_text(os.urandom(32).hex())
    environ = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(directory),
        # Workers need the plug-ins of their run.
        "PYTHONPATH": python_path(Path(__file__).parent, HELPERS),
    }
    before = dict(os.environ)
    os.environ.update(environ)
    nodes = None
    try:
        nodes = RayNodes(token_file)
        nodes.add(count)
        yield nodes
    finally:
        if nodes is not None:
            nodes.end()
        os.environ.clear()
        os.environ.update(before)
