"""Builds a part in a Python process of its own, as rewards are, and tells what it did there.

Question and answer are JSON files: a part may print what it likes. Hashes of texts are salted
otherwise than in the parent, so that what depends on them is found.
"""

from __future__ import annotations

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
from rlax_plugin.testing.contracts.inspection import Broken, told
from rlax_plugin.types import Prompt

HEAVY = ("jax", "tensorflow", "torch")
SPLITS = ("train", "validation", "test")


def ask(
    section: RlaxSection, kind: str, choice: Choice, question: dict[str, Any], deadline_s: float
) -> dict[str, Any]:
    """Has a fresh process build a part and answer a question about it.

    Args:
      kind: ``reward`` or ``prompt_source``.
      question: ``cases`` of a reward, see ``_scored``; nothing for a prompt source.

    Raises:
      Broken: the process failed, or did not end within the deadline.
    """
    asked = {"section": section.model_dump(mode="json"), "kind": kind, "name": choice.name}
    with tempfile.TemporaryDirectory(prefix="rlax-check-") as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(json.dumps({**asked, "options": choice.options, **question}))
        command = [sys.executable, "-m", __name__, str(request), str(answer)]
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
    """Prompts as JSON; equal for equal ones."""
    return [[p.id, np.asarray(p.tokens).tolist(), p.text, p.reference] for p in prompts]


def _scored(reward: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Two calls: what they returned or raised, and the seconds of the longer one."""
    completion = case.pop("completion")
    prompt = Prompt(**{**case, "tokens": np.array(case["tokens"], np.int32)})
    calls, took_s = [], 0.0
    for _ in range(2):
        started = time.perf_counter()
        try:
            value = reward(prompt, completion)
            number = float(value) if isinstance(value, (int, float, np.number)) else None
            calls.append({"type": type(value).__name__, "value": number, "shown": repr(value)[:80]})
        except Exception as error:  # noqa: BLE001  it is the answer
            calls.append({"error": told(error)})
        took_s = max(took_s, time.perf_counter() - started)
    return {"calls": calls, "took_s": took_s}


def main(request: str, answer: str) -> None:
    """Answers one question."""
    asked = json.loads(Path(request).read_text())
    section = RlaxSection.model_validate(asked["section"])
    context = BuildContext(run_dir=Path(request).parent, seed=section.seed, section=section)
    choice = Choice(name=asked["name"], **asked["options"])
    part = registry_for(section).part(asked["kind"], choice, "options", context)
    if asked["kind"] == "reward":
        found: dict[str, Any] = {"scored": [_scored(part, case) for case in asked["cases"]]}
    else:
        found = {"splits": {split: digest(part.prompts(split)) for split in SPLITS}}
    found["heavy"] = [name for name in HEAVY if name in sys.modules]
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
