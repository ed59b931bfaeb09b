"""A Ray cluster on this machine for the workers of a run under chaos, whose nodes may end.

It has a head and some nodes, listens on loopback only, takes a token, and ends with the run. The
config's launcher becomes ``ray``, with as many workers as it starts otherwise; each node runs one.
The blows to a node that runs a worker:

- ``kill``: SIGKILL of all its processes at once: the raylet, Ray's agents, the actor, the worker.
- ``freeze``: SIGSTOP of all its processes. Ray takes a node that does not answer for 3 s as lost,
  and the node ends when it continues.
- ``drain``: the node announces to Ray that it ends within 6 s, as after the notice of a preemption;
  all its processes are killed at the end of the blow.

A node that has ended is started again. The head is never hit: Ray's own state is lost with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from chaos.blows import LONGEST_S, Blow
from chaos.supervised import SupervisedRun
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.start.hosts import free_port

_MODULE, _RESOURCE = "chaos.node", "rlax_node"
_HEAD = "head node of Ray"
_START_S, _LOOK_S = 300.0, 0.1


def check_nodes(nodes: int, workers: int | None) -> int:
    """Returns the number of workers that Ray is to start.

    Args:
      workers: the number that the config's launcher starts; None: it is unknown.

    Raises:
      ConfigError: Ray is not installed, or the nodes are too few.
    """
    if importlib.util.find_spec("ray") is None:
        reason = "needs the package ray, which is not installed: pip install '.[ray]' in a checkout"
        raise ConfigError("--ray-nodes", nodes, reason)
    if workers is None:
        reason = "needs a launcher that says how many workers it starts, such as local"
        raise ConfigError("--ray-nodes", nodes, reason)
    if workers > nodes:
        reason = f"must be at least the {workers} workers of rlax.launcher: a node runs one"
        raise ConfigError("--ray-nodes", nodes, reason)
    return workers


class RayNodes:
    """The nodes, which are also a fault: see ``faults.Trouble``.

    Args:
      run: to which the nodes are added; they outlive it, and ``run.close`` ends them.
      count: number of nodes beside the head; each runs one worker.

    Attributes:
      environment: variables of the nodes, and of processes that join the cluster.
    """

    def __init__(self, run: SupervisedRun, count: int, stack: ExitStack):
        self._run, self._names = run, [f"node {index}" for index in range(1, count + 1)]
        # Short, because Ray makes sockets below it, whose names have at most 107 characters.
        directory = tempfile.mkdtemp(prefix="rlax-ray-", dir="/tmp")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        stack.callback(run.end_nodes)
        self._token = run.directory.absolute() / "ray-token"
        self._token.touch(0o600, exist_ok=False)
        self._token.write_text(os.urandom(32).hex())
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # it listens on loopback alone
            "RAY_TMPDIR": directory,
            "TMPDIR": directory,  # with what an actor leaves that was killed with its node
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # Ray's own 15 would starve workers beside the trainer
        }
        self._frozen = list[psutil.Process]()
        self._ending = ""
        self._port = free_port()

    def start(self, environment: dict[str, str]) -> None:
        """Starts the head, and then the other nodes.

        Args:
          environment: variables of the workers.

        Raises:
          RlaxError: a node did not start.
        """
        own = self.environment | environment
        self._start(_HEAD, own, "--port", str(self._port))
        for name in self._names:  # one after the other: each is several heavy processes
            address = f"127.0.0.1:{self._port}"
            self._start(name, own, "--address", address, "--resource", _RESOURCE)

    def _start(self, name: str, environment: dict[str, str], *options: str) -> None:
        """Starts a node, and waits until it is there."""
        run, ready, others = self._run, self._ready(name), name != _HEAD
        options += ("--ready", str(ready), "--notice-s", f"{LONGEST_S:g}")
        options += ("--parent", str(os.getpid()))
        settings = {"module": _MODULE, "node": True, "always": others, "environment": environment}
        run.add(name, *options, **settings)
        until_s = time.monotonic() + _START_S
        while not ready.exists():
            run.go_on()  # on a busy machine Ray gives up a node after 30 s
            if (run.ended(name) and not others) or time.monotonic() > until_s:
                log = run.log_of(name)
                lines = log.read_text(errors="replace").split("\n")
                last = next((line for line in reversed(lines) if line), "it printed nothing")
                raise RlaxError(f"the {name} did not start: {last} (see {log})")
            time.sleep(_LOOK_S)

    def _ready(self, name: str) -> Path:
        return self._run.log_of(name).with_suffix(".ready")

    def launcher(self, workers: int) -> str:
        """Returns the override with which a run has so many workers in this cluster."""
        options = {
            "name": "ray",
            "address": f"127.0.0.1:{self._port}",
            "token_file": str(self._token),
            "pools": [{"min": workers, "resources": {_RESOURCE: 1}}],
            "max_restarts": 100,
        }
        return f"rlax.launcher={json.dumps(options)}"

    def begin(self, blow: Blow) -> str:
        """See ``Trouble``; it hits a node with a worker."""
        if not (busy := self._busy()):
            return ""
        name = busy[min(int(blow.choice * len(busy)), len(busy) - 1)]
        if blow.kind == "kill":
            self._run.kill(name)
        elif blow.kind == "freeze":
            self._frozen = self._run.halt(name)
        elif self._run.send(name, signal.SIGUSR1):
            self._ending = name
        return name

    def end(self) -> None:
        """See ``Trouble``."""
        for process in self._frozen:
            with suppress(psutil.Error):
                process.resume()
        self._frozen = []
        if self._ending:
            self._run.kill(self._ending)
        self._ending = ""

    def _busy(self) -> Sequence[str]:
        workers = {mark.pid for mark in self._run.living("worker")}
        return [
            name
            for name in self._names
            if workers & {process.pid for process in self._run.below(name)}
        ]
