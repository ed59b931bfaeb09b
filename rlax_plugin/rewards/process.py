"""A reward process: scores completions that arrive as JSON lines on a socket of its own.

Started by ``RewardPool`` as ``python -m rlax_plugin.rewards.process SOCKET CURRENT``, two
file descriptors. It is a process of its own so that a reward that hangs, leaks or crashes costs one
sample and never the run; JSON instead of pickle so that nothing but data crosses the boundary. It
leads a session and a process group, which ends with it: what a reward starts does not outlive it.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import queue
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlax_plugin.build import build_part
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.protocols import BuildContext, Reward
from rlax_plugin.rewards.process_tree import kill_tree
from rlax_plugin.text.harmless import harmless, one_line
from rlax_plugin.types import Prompt

_MOST_TRACEBACKS = 20  # a reward that always fails must not fill the disk
_LONGEST_TRACEBACK = 10_000  # characters, of its end


def _said(error: BaseException) -> str:
    """What an exception says, which may fail in its turn."""
    try:
        return one_line(f"{type(error).__name__}: {error}")
    except Exception as failed:  # noqa: BLE001  code of the reward, which may raise anything
        return f"{type(error).__name__}, which cannot be shown: {type(failed).__name__}"


def _log(prompt: Prompt, error: BaseException) -> None:
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception as failed:  # noqa: BLE001  as above
        lines = f"{type(error).__name__}, which cannot be shown: {type(failed).__name__}\n"
    shown = harmless(lines[-_LONGEST_TRACEBACK:])
    print(f"a reward failed on prompt {prompt.id}:\n{shown}", end="", file=sys.stderr, flush=True)


def _score(
    rewards: list[Reward],
    prompt: Prompt,
    text: str,
    shown: set[tuple[str, str, int | None]],
    current: Any = bytearray(1),  # noqa: B008  nobody reads this one
) -> dict[str, Any]:
    """One answer.

    Args:
      shown: type, file and line of each error whose traceback is in the log; is added to.
      current: its first byte is set to the number of the reward that is being called.
    """
    try:
        parts = []
        for number, reward in enumerate(rewards):
            current[0] = min(number, 255)
            parts.append(float(reward(prompt, text)))
        value = float(sum(parts))
        if not math.isfinite(value):
            raise ValueError(f"the reward is {value}")
        return {"reward": value, "parts": parts}
    # A failure is data here: it travels to the record. sys.exit is one, too.
    except BaseException as error:  # noqa: BLE001
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__, where.filename, where.lineno
        if kind not in shown and len(shown) < _MOST_TRACEBACKS:
            shown.add(kind)
            _log(prompt, error)
        return {"error": f"{_said(error)} (line {where.lineno} of {one_line(where.name, 100)})"}


def _read(jobs: IO[str], lines: queue.SimpleQueue[str]) -> None:
    try:
        for line in jobs:
            lines.put(line)
    finally:
        # The run is over, however it ended; if it was killed with answers unread, the connection is
        # reset. Neither a reward that hangs stays behind nor what it began.
        kill_tree(os.getpid())


def _let_go(connection: socket.socket) -> None:
    if connection.fileno() >= 0:
        os.close(connection.detach())


def main() -> None:
    descriptor, shared = map(int, sys.argv[1:])
    # Neither what a reward starts nor what it forks may hold the way on which jobs come.
    os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=descriptor)
    os.register_at_fork(after_in_child=lambda: _let_go(connection))
    current = mmap.mmap(shared, 1)
    os.close(shared)
    jobs = connection.makefile("r", encoding="utf-8")

    def answer(message: dict[str, Any]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    sys.stdout = sys.stderr  # which holds nothing back: a reward that hangs is killed
    start = json.loads(jobs.readline())
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs, lines), daemon=True).start()
    section = RlaxSection.model_validate(start["section"])
    context = BuildContext(run_dir=Path(start["run_dir"]), seed=section.seed, section=section)
    rewards = [
        build_part("reward", choice, f"{start['key']}.{i}", context)
        for i, choice in enumerate(section.rewards)
    ]
    answer({"ready": True})
    shown: set[tuple[str, str, int | None]] = set()
    while True:
        job = json.loads(lines.get())
        prompt = Prompt(
            id=job["prompt_id"],
            tokens=np.array(job["prompt_tokens"], dtype=np.int32),
            text=job["prompt_text"],
            reference=job["reference"],
        )
        for sample, text in enumerate(job["completions"]):
            found = _score(rewards, prompt, text, shown, current)
            answer({"job": job["job"], "sample": sample, **found})


if __name__ == "__main__":
    main()
