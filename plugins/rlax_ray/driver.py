"""The process that holds the connection to a Ray cluster: ``python -m rlax_ray.driver``.

It is a process of its own because Ray replaces signal handlers and starts many threads. It reads
requests and writes events, JSON objects in lines, on standard input and output; the first request
is the plan. When its input ends, it ends all workers, and the cluster if it has started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from rlax_ray.keeper import Keeper
from rlax_ray.options import LOCAL
from rlax_ray.workers import Lost, Workers

_TICK_S = 0.25
_OBJECTS = 100 << 20  # bytes for objects of Ray in a cluster of one's own: there are hardly any
_DRAINING_S = 1.0  # between two questions for nodes that are being drained
_THREADS = 8  # calls of an actor beside each other: ``serve`` lasts
_KILLED_S = 10.0  # beyond a grace, for the ends of workers to be noticed


class RayCall:
    """A call of an actor that is under way."""

    def __init__(self, reference: Any):
        self._reference = reference

    def done(self) -> bool:
        import ray

        return bool(ray.wait([self._reference], timeout=0, fetch_local=False)[0])

    def result(self) -> Any:
        """Returns the result of a call that is done; raises ``Lost``."""
        import ray
        from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayError

        try:
            return ray.get(self._reference, timeout=_KILLED_S)
        except RayError as error:
            gone = isinstance(error, ActorDiedError | ActorUnschedulableError)
            raise Lost(_reason(error), gone) from error


class RayActor:
    """One process of the cluster that runs a worker as its child; see ``keeper.Keeper``."""

    def __init__(self, handle: Any):
        self._handle = handle

    def call(self, method: str, *args: Any) -> RayCall:
        return RayCall(getattr(self._handle, method).remote(*args))

    def kill(self) -> None:
        """Ends it at once; its child ends with it."""
        import ray

        ray.kill(self._handle)


class RayCluster:
    """The calls of Ray that are needed."""

    def __init__(self, logs: str):
        self._logs, self._asked_s = Path(logs), 0.0
        self._ends_ms: dict[str, int] = {}  # node -> time at which it ends; 0: unknown

    def actor(self, name: str, pool: Mapping[str, Any]) -> RayActor:
        """Returns a new actor, which starts once a node has the resources of its pool."""
        import ray

        resources = dict(pool["resources"])
        options = {
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "resources": resources,
            "max_restarts": -1,  # elsewhere, if the process or the node ends
            "max_task_retries": 0,  # each start gets a number of its own
            "max_concurrency": _THREADS,
        }
        if pool["labels"]:
            options["label_selector"] = dict(pool["labels"])
        handle = ray.remote(Keeper).options(**options).remote(str(self._logs / f"{name}.log"))
        return RayActor(handle)

    def draining(self) -> Mapping[str, float]:
        """Node -> seconds that are left to it; infinite: no deadline."""
        from ray._private.state import state
        from ray.exceptions import RayError

        now_s = time.monotonic()
        if now_s - self._asked_s >= _DRAINING_S:
            self._asked_s = now_s
            # The head may be away for a while; then nothing is known anew.
            with contextlib.suppress(RayError):
                self._ends_ms = dict(state.get_draining_nodes())
        return {
            node: ms / 1000 - time.time() if ms else float("inf")
            for node, ms in self._ends_ms.items()
        }


def _reason(error: Exception) -> str:
    """Returns the line that says why: the last one of a traceback, otherwise the first one."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "Error: " in lines[-1] else lines[0]


def _reader(path: Path) -> Callable[[], str]:
    """Returns a function that reads the token file; while that cannot be read, its last content."""
    last = ""

    def read() -> str:
        nonlocal last
        with contextlib.suppress(OSError):
            last = path.read_text()
        return last

    return read


def _requests(lines: TextIO) -> queue.SimpleQueue[dict[str, Any] | None]:
    """Reads requests on a thread; the last one, None, is the end of the input."""
    found: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            found.put(json.loads(line))
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    return found


def _connect(plan: Mapping[str, Any], directory: Path) -> None:
    import ray
    from ray.job_config import JobConfig

    local = plan["address"] == LOCAL
    own = {
        # Ray opens this directory for all users, so it lies in one that they cannot enter.
        "_temp_dir": str(directory / "ray"),
        "num_cpus": plan["cpus"],
        "object_store_memory": _OBJECTS,
    }
    ray.init(
        address="local" if local else plan["address"],
        include_dashboard=False if local else None,
        log_to_driver=False,
        configure_logging=False,
        namespace=f"rlax-{os.getpid()}",
        # Otherwise the actors would import from the driver's working directory first.
        job_config=JobConfig(_client_job=True),
        **(own if local else {}),
    )


def _keep(plan: Mapping[str, Any], requests: queue.SimpleQueue[Any], report: Any) -> None:
    """Keeps the workers until the run ends or the input does."""
    workers = Workers(
        cluster=RayCluster(plan["logs"]),
        pools=plan["pools"],
        token=_reader(Path(plan["token_file"])),
        report=report,
        max_restarts=plan["max_restarts"],
        drain_s=plan["drain_s"],
        last_incarnation=plan["last_incarnation"],
    )
    workers.resize(plan["workers"])
    ends_s = float("inf")
    while time.monotonic() < ends_s:
        workers.tick()
        if ends_s < float("inf") and not workers.all:
            break
        try:
            request = requests.get(timeout=_TICK_S)
        except queue.Empty:
            continue
        if request is None or "stop_s" in request:
            grace_s = plan["stop_s"] if request is None else request["stop_s"]
            workers.stop(grace_s)
            ends_s = min(ends_s, time.monotonic() + grace_s + _KILLED_S)
        else:
            workers.resize(request["workers"])
    for worker in workers.all:
        worker.actor.kill()


def main() -> None:
    # A Ctrl-C and a SIGTERM are for the trainer, whose request or end comes through the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever Ray prints must not come between the events

    def report(event: str, **fields: Any) -> None:
        out.write(json.dumps({"event": event, **fields}) + "\n")

    requests = _requests(sys.stdin)
    plan = requests.get()
    if plan is None:
        return
    directory = Path(plan["directory"])
    try:
        own_token = directory / "token"
        own_token.touch(0o600)
        own_token.write_text(os.urandom(32).hex())
        if plan["address"] == LOCAL:
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(own_token)
        import ray
        from ray.exceptions import RayError

        try:
            _connect(plan, directory)
        except (RayError, ConnectionError, RuntimeError, ValueError) as error:
            report("failed", text=f"cannot {_what(plan)}: {_reason(error)}")
            return
        report("ready")
        try:
            _keep(plan, requests, report)
        finally:
            ray.shutdown()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report("stopped")


def _what(plan: Mapping[str, Any]) -> str:
    if plan["address"] == LOCAL:
        return "start a Ray cluster on this machine"
    return f"join the Ray cluster at {plan['address']}"


if __name__ == "__main__":
    main()
