"""A reward process: scores completions that arrive as JSON lines on its standard input.

Started by ``RewardPool`` as ``python -m rlax_plugin.controller.reward_process``. It is a process of
its own so that a reward that hangs, leaks or crashes costs one sample and never the run; JSON
instead of pickle so that nothing but data crosses the boundary.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.build import build_part
from rlax_plugin.config import RlaxSection
from rlax_plugin.protocols import BuildContext, Reward
from rlax_plugin.types import Prompt

_MOST_TRACEBACKS = 20  # a reward that always fails must not fill the disk


def _score(
    rewards: list[Reward], prompt: Prompt, text: str, shown: set[tuple[str, str, int | None]]
) -> dict[str, Any]:
    """One answer.

    Args:
      shown: type, file and line of each error whose traceback is in the log; is added to.
    """
    try:
        parts = [float(reward(prompt, text)) for reward in rewards]
        value = float(sum(parts))
        if not math.isfinite(value):
            raise ValueError(f"the reward is {value}")
        return {"reward": value, "parts": parts}
    except Exception as error:  # noqa: BLE001  a failure is data here: it travels to the record
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__, where.filename, where.lineno
        if kind not in shown and len(shown) < _MOST_TRACEBACKS:
            shown.add(kind)
            print(f"a reward failed on prompt {prompt.id}:", file=sys.stderr)
            traceback.print_exception(error)
            sys.stderr.flush()
        return {"error": f"{type(error).__name__}: {error} (line {where.lineno} of {where.name})"}


def _read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # the run is over, however it ended: not even a reward that hangs stays behind


def main() -> None:
    # Anything a reward prints must not end up among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # which holds nothing back: a reward that hangs is killed
    start = json.loads(sys.stdin.readline())
    section = RlaxSection.model_validate(start["section"])
    context = BuildContext(
        run_dir=Path(start["run_dir"]), seed=section.seed, section=section, maxtext_argv=()
    )
    rewards = [
        build_part("reward", choice, f"rlax.rewards.{i}", context)
        for i, choice in enumerate(section.rewards)
    ]
    answers.write(json.dumps({"ready": True}) + "\n")
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    shown: set[tuple[str, str, int | None]] = set()
    while True:
        job = json.loads(lines.get())
        prompt = Prompt(
            id=job["prompt_id"],
            tokens=np.array(job["prompt_tokens"], dtype=np.int32),
            text=job["prompt_text"],
            reference=job["reference"],
        )
        for text in job["completions"]:
            answer = {"job": job["job"], **_score(rewards, prompt, text, shown)}
            answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
