"""A node of a Ray cluster on the loopback address of this machine: ``python -m chaos.node``.

``nodes`` starts a head and several others. ``ray start`` would let them listen on all addresses.
All processes of a node are in the session of this one, unless they begin their own, and end with
it. SIGUSR1 announces that the node ends soon, as the notice of a preemption does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_OBJECTS = 80 << 20  # bytes of the object store: nothing is kept there
_TICK_S = 0.25
_FAILED = 1
_HEALTH = {  # a node that does not answer is dead after 3 s, and not after 30
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


def _started(port: int, address: str, resource: str) -> Any:
    """Starts the processes of a node; returns Ray's object of it."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    own: dict[str, Any] = {"gcs_server_port": port, "_system_config": _HEALTH}
    if address:
        own = {"gcs_address": address, "include_log_monitor": False}
    params = RayParams(
        num_cpus=0,
        num_gpus=0,
        resources={resource: 1} if resource else {},
        object_store_memory=_OBJECTS,
        include_dashboard=False,
        min_worker_port=0,
        max_worker_port=0,
        dashboard_agent_listen_port=None,
        **own,
    )
    return Node(params, head=not address, shutdown_at_exit=True, spawn_reaper=True)


def _drain(node: Any, notice_s: float) -> None:
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    why = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    until_ms = int((time.time() + notice_s) * 1000)
    GcsClient(address=node.gcs_address).drain_node(node.node_id, why, "chaos", until_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="of the head, which this is")
    parser.add_argument("--address", default="", help="of the head, if this is another node")
    parser.add_argument("--resource", default="", help="of which this node has one")
    parser.add_argument("--ready", type=Path, help="file that is made once the node is there")
    parser.add_argument("--notice-s", type=float, default=6.0, help="from SIGUSR1 to the end")
    parser.add_argument("--parent", type=int, required=True, help="process with which it ends")
    arguments = parser.parse_args()
    node = _started(arguments.port, arguments.address, arguments.resource)
    signal.signal(signal.SIGUSR1, lambda *_: _drain(node, arguments.notice_s))
    if arguments.ready is not None:
        arguments.ready.touch()
    while os.getppid() == arguments.parent:
        if ended := [str(name) for name, _ in node.dead_processes()]:
            print(f"{', '.join(ended)} of this node ended", file=sys.stderr, flush=True)
            sys.exit(_FAILED)  # and Ray ends the others
        time.sleep(_TICK_S)


if __name__ == "__main__":
    main()
