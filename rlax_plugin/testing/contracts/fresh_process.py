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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.processes.python import python_command
from rlax_plugin.base.types import Prompt
from rlax_plugin.build import registry_for
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.reward.messages import lengths_of
from rlax_plugin.reward.process import Failures, Form, form_of, scores_of
from rlax_plugin.testing.builders import make_episode, make_sampled
from rlax_plugin.testing.contracts.inspection import Broken

HEAVY = ("jax", "tensorflow", "torch")
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


async def _scored(reward: Any, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Scores a completion twice, as a reward process does: each time its score, or the error."""
    completion = case.pop("completion")
    prompt = Prompt(**{**case, "tokens": np.array(case["tokens"], np.int32)})
    form = form_of(reward)
    # A token for each of the first characters.
    episode = make_episode(
        make_sampled(1 + min(len(completion), 60)), prompt=prompt, text=completion
    )
    episodes = [episode]
    if form.takes == "group":
        episodes.append(dataclasses.replace(episode, index=1))

    async def call(form: Form, arguments: tuple[Any, ...]) -> Any:
        value = form.method(*arguments)
        return await value if form.waits else value

    lengths = [lengths_of(one) for one in episodes]
    scores = []
    for _ in range(2):
        shown = await scores_of(
            [form], prompt, episodes, lengths, call=call, at=lambda _: None, failures=Failures()
        )
        scores.append(shown[0])
    return scores


def main(request: str, answer: str) -> None:
    """Answers one question."""
    asked = json.loads(Path(request).read_text())
    section = RlaxSection.model_validate(asked["section"])
    context = BuildContext(run_dir=Path(request).parent, seed=section.seed, section=section)
    choice = Choice(name=asked["name"], **asked["options"])
    part = registry_for(section).part(asked["kind"], choice, "options", context)
    if asked["kind"] == "reward":
        with asyncio.Runner() as runner:  # of one event loop for all, as that of a process
            scored = [runner.run(_scored(part, case)) for case in asked["cases"]]
        found: dict[str, Any] = {"scored": scored}
    else:
        found = {"splits": {split: digest(part.prompts(split)) for split in SPLITS}}
    found["heavy"] = [name for name in HEAVY if name in sys.modules]
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
