"""Builds a part in a Python process of its own, as rewards are, and reports its results.

Question and answer are JSON files, so a part may print anything. Hashes of texts have another salt
than in the parent, which reveals results that depend on them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.build import registry_for
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.processes.python import python_command
from rlax_plugin.rewards.messages import checked, lengths_of
from rlax_plugin.rewards.process import Form, form_of
from rlax_plugin.testing.contracts.inspection import Broken, told
from rlax_plugin.types import Episode, Prompt, Sampled, Score, Trajectory, Turn

HEAVY = ("jax", "tensorflow", "torch")
_TICK_S = 0.01
SPLITS = ("train", "validation", "test")


def ask(
    section: RlaxSection, kind: str, choice: Choice, question: dict[str, Any], deadline_s: float
) -> dict[str, Any]:
    """Makes a fresh process build a part and answer a question about it.

    Args:
      kind: ``reward`` or ``prompt_source``.
      question: ``cases`` of a reward, see ``_scored``; empty for a prompt source.

    Raises:
      Broken: the process failed, or did not end within the deadline.
    """
    asked = {"section": section.model_dump(mode="json"), "kind": kind, "name": choice.name}
    with tempfile.TemporaryDirectory(prefix="rlax-check-") as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(json.dumps({**asked, "options": choice.options, **question}))
        command = python_command("-m", __name__, str(request), str(answer))
        # What this process can import, the other one can.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=deadline_s,
            )
        except subprocess.TimeoutExpired:
            raise Broken(f"it did not end within {deadline_s:g} s") from None
        if done.returncode or not answer.exists():
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise Broken(f"the process ended with status {done.returncode}: {last}")
        return json.loads(answer.read_text())


def case_of(prompt: Prompt, completion: str) -> dict[str, Any]:
    """A prompt and a completion as JSON."""
    return {
        "id": prompt.id,
        "tokens": prompt.tokens.tolist(),
        "text": prompt.text,
        "reference": prompt.reference,
        "completion": completion,
    }


def digest(prompts: Sequence[Prompt]) -> list[list[Any]]:
    """Prompts as JSON; equal for equal prompts."""
    return [[p.id, np.asarray(p.tokens).tolist(), p.text, p.reference] for p in prompts]


def _scored(reward: Any, case: dict[str, Any], runner: asyncio.Runner) -> dict[str, Any]:
    """Calls a reward twice: the results or errors, and the seconds of the longer call.

    For an async reward also the longest time in which its event loop was blocked.

    Args:
      runner: runs async rewards; like a reward process, it has one event loop for all calls.
    """
    completion = case.pop("completion")
    prompt = Prompt(**{**case, "tokens": np.array(case["tokens"], np.int32)})
    form, episode = form_of(reward), _episode(prompt, completion)
    calls, took_s, stood_s = [], 0.0, 0.0
    for _ in range(2):
        started = time.perf_counter()
        try:
            if form.waits:
                value, stood = runner.run(_awaited(form, prompt, episode))
                stood_s = max(stood_s, stood)
            else:
                value = form.method(*_arguments(form, prompt, episode))
            calls.append(_shown(_first(form, value), episode))
        except Exception as error:  # noqa: BLE001  it is the answer
            calls.append({"error": told(error)})
        took_s = max(took_s, time.perf_counter() - started)
    return {"calls": calls, "took_s": took_s, "stood_s": stood_s}


def _episode(prompt: Prompt, completion: str) -> Episode:
    """An episode of one turn, with a token for each of the first characters and no log-probs."""
    tokens = np.arange(4, 5 + min(len(completion), 60), dtype=np.int32)
    none, nats = np.zeros(0, np.int32), np.zeros(0, np.float32)
    turn = Turn(prompt.tokens, Sampled(0, tokens, nats, none, "stop"))
    return Episode(0, (Trajectory((turn,)),), completion)


def _arguments(form: Form, prompt: Prompt, episode: Episode) -> tuple[Any, ...]:
    if form.takes == "group":
        return prompt, (episode, dataclasses.replace(episode, index=1))
    return form.arguments(prompt, episode)


async def _awaited(form: Form, prompt: Prompt, episode: Episode) -> tuple[Any, float]:
    """The result of an async reward, and the longest time without a step of another task."""
    stood_s, ticks = 0.0, True

    async def tick() -> None:
        nonlocal stood_s
        last_s = time.perf_counter()
        while ticks:
            await asyncio.sleep(_TICK_S)
            now_s = time.perf_counter()
            stood_s, last_s = max(stood_s, now_s - last_s - _TICK_S), now_s

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        value = await form.method(*_arguments(form, prompt, episode))
    finally:
        ticks = False
        await ticking
    return value, stood_s


def _first(form: Form, value: Any) -> Any:
    if form.takes != "group":
        return value
    found = list(value)
    if len(found) != 2:
        raise ValueError(f"score_group returned {len(found)} scores for 2 episodes")
    return found[0]


def _shown(value: Any, episode: Episode) -> dict[str, Any]:
    shown = {"type": type(value).__name__, "shown": repr(value)[:80], "value": None}
    if isinstance(value, Score):
        checked(value, lengths_of(episode))
        value = value.total
    if isinstance(value, (int, float, np.number)):
        shown["value"] = float(value)
    return shown


def main(request: str, answer: str) -> None:
    """Answers one question."""
    asked = json.loads(Path(request).read_text())
    section = RlaxSection.model_validate(asked["section"])
    context = BuildContext(run_dir=Path(request).parent, seed=section.seed, section=section)
    choice = Choice(name=asked["name"], **asked["options"])
    part = registry_for(section).part(asked["kind"], choice, "options", context)
    if asked["kind"] == "reward":
        with asyncio.Runner() as runner:
            scored = [_scored(part, case, runner) for case in asked["cases"]]
        found: dict[str, Any] = {"scored": scored}
    else:
        found = {"splits": {split: digest(part.prompts(split)) for split in SPLITS}}
    found["heavy"] = [name for name in HEAVY if name in sys.modules]
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
