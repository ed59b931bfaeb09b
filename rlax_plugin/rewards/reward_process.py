"""A reward process: scores and plays episodes that arrive as JSON lines on a socket of its own.

Started by ``RewardProcess`` as ``python -m rlax_plugin.rewards.reward_process SOCKET WITNESS``, two
file descriptors. It is a separate process so that code that hangs, leaks or crashes costs one
sample and never the run. It leads a session and a process group, which ends with it, so that
processes started by a reward do not outlive it.

Three threads: one reads, the main one calls functions one at a time (signals and many libraries
need the main one), and an event loop runs async rewards and environments, many at a time.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlax_plugin.build import build_part
from rlax_plugin.config import RlaxSection, last_of
from rlax_plugin.liveness.marks import announced
from rlax_plugin.liveness.watchdog import STILL_S, Watchdog
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.rewards.event_loop import WaitingJobs, loop_with
from rlax_plugin.rewards.forms import Needs, form_of
from rlax_plugin.rewards.main_thread import MainThread
from rlax_plugin.rewards.messages import ON_LOOP, line
from rlax_plugin.rewards.process_tree import kill_tree
from rlax_plugin.rewards.scoring import Failures
from rlax_plugin.rewards.witness import Witness
from rlax_plugin.text.secrets import learn_secrets


class Connection:
    """The connection to the trainer, for all threads."""

    def __init__(self, descriptor: int):
        # Neither what a reward starts nor what it forks may hold the way on which jobs come.
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        os.register_at_fork(after_in_child=self._let_go)
        self._lock = threading.Lock()
        self._rest = b""

    def receive(self) -> list[bytes]:
        """Waits for lines, and returns all that have come.

        Raises:
          EOFError: the connection has ended.
        """
        while True:
            data = self._socket.recv(1 << 18)
            if not data:
                raise EOFError
            *lines, self._rest = (self._rest + data).split(b"\n")
            if lines:
                return lines

    def _let_go(self) -> None:
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())

    def send(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._socket.sendall(line(message))


def _read(connection: Connection, take: Callable[[list[bytes]], None]) -> None:
    try:
        while True:
            take(connection.receive())
    finally:
        # The run is over, however it ended; if it was killed with answers unread, the connection is
        # reset. Neither a reward that hangs stays behind nor what it began.
        kill_tree(os.getpid())


def main() -> None:
    descriptor, shared = map(int, sys.argv[1:])
    connection, witness = Connection(descriptor), Witness(shared)
    os.close(shared)
    sys.stdout = sys.stderr  # which holds nothing back: a reward that hangs is killed
    (first,) = connection.receive()  # nothing follows before it is ready
    start = json.loads(first)
    failures = Failures()
    main_thread = MainThread(connection.send, witness, failures)
    waiting: WaitingJobs | None = None

    def take(lines: list[bytes]) -> None:
        for_loop = [one for one in lines if one.startswith(ON_LOOP)]
        for one in for_loop:
            assert waiting is not None  # else no such job is sent
            loop.call_soon_threadsafe(waiting.take, one[len(ON_LOOP) :])
        if len(for_loop) < len(lines):
            main_thread.take([one for one in lines if not one.startswith(ON_LOOP)])

    threading.Thread(target=_read, args=(connection, take), daemon=True).start()
    learn_secrets(start["section"])  # an error is cut here, before the trainer sees it
    section = RlaxSection.model_validate(start["section"])
    context = BuildContext(
        run_dir=Path(start["run_dir"]),
        seed=section.seed,
        section=section,
        functions=start["functions"],
    )
    rewards = [
        build_part("reward", choice, f"{start['key']}.{i}", context)
        for i, choice in enumerate(section.rewards)
    ]
    forms = [
        form_of(
            reward,
            last_of(choice.weight),
            f"{start['key']}.{i} ({choice.name})",
            section.reward_limit,
        )
        for i, (reward, choice) in enumerate(zip(rewards, section.rewards, strict=True))
    ]
    needs = Needs.of(forms)
    environment = None
    if section.several_turns:
        key = "rlax.environment"
        environment = build_part("environment", section.environment, key, context)
    if needs.waits or environment is not None:
        loop = loop_with(witness)
        waiting = WaitingJobs(
            loop,
            forms,
            environment,
            main_thread,
            connection.send,
            failures,
            reward_limit=section.reward_limit,
        )
    run_dir = Path(start["run_dir"])
    with announced(run_dir, "rewards") as mark, Watchdog(mark) as watchdog:
        reward_s = section.deadlines.reward_s
        watchdog.watch("a reward", lambda: main_thread.busy_s, min(STILL_S, reward_s / 2))
        if waiting is not None:
            watchdog.watch_loop("the event loop of rewards and episodes", loop)
        connection.send({"ready": True, **asdict(needs)})
        main_thread.run(forms)


if __name__ == "__main__":
    main()
