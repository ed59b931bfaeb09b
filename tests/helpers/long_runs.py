"""The records of a long run that nobody ran, written much faster than a run would write them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.metrics.names import STAGES
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal, samples
from rlax_plugin.testing.builders import make_batch, make_episode, make_group, make_sampled

GROUPS, SAMPLES, TOKENS = 4, 4, 16  # of a step, of a group, of a sample
_SECONDS = ("step_s", "wait_s", "train_s", "publish_on_loop_s", "publish_s", "commit_s")
_PROMPTS = 2000


class LongRun:
    """A run that is written as far as a test wants it, and then further.

    Every recorded metric of the table has a value in every step.

    Args:
      directory: of the run.
    """

    def __init__(self, directory: Path):
        self.dir = directory
        self._files = RunFiles(directory)
        self._rng = np.random.default_rng(0)
        self._step, self._checksum = 0, journal.START
        self._rows = self._step_of_samples()
        self._names = [
            metric.name
            for stage in STAGES
            for metric in stage.metrics
            if not metric.is_pattern and not metric.name.startswith("evaluation")
        ]
        rollouts = {"group_size": SAMPLES, "groups_per_step": GROUPS}
        self._files.put_json("config.yml", {"steps": 10_000, "rlax": {"rollouts": rollouts}})

    def _step_of_samples(self) -> pa.Table:
        count = GROUPS * SAMPLES
        tokens = self._rng.integers(0, 50_000, (count, TOKENS), dtype=np.int32)
        logprobs = -self._rng.exponential(1.0, (count, TOKENS)).astype(np.float32)
        made = [
            make_group(
                [0.0, 1.0, 0.0, 1.0],
                id=group,
                episodes=tuple(
                    make_episode(
                        make_sampled(tokens=tokens[at], logprobs=logprobs[at]),
                        index=at % SAMPLES,
                        text=f"answer {at} of some words that are as long as those of a model",
                    )
                    for at in range(group * SAMPLES, (group + 1) * SAMPLES)
                ),
            )
            for group in range(GROUPS)
        ]
        return samples.of_batch(make_batch(1, made))

    def go_on(self, steps: int) -> None:
        """Writes further steps."""
        with (self.dir / "metrics.jsonl").open("a") as file:
            for _ in range(steps):
                self._step += 1
                file.write(json.dumps(self._metrics()) + "\n")
                self._commit()

    def end(self) -> None:
        """Writes the summary of a complete run."""
        self._files.put_json("summary.json", {"complete": True, "steps": self._step})

    def _metrics(self) -> dict[str, float]:
        values = self._rng.random(len(self._names)) + self._step / 10_000
        seconds = {f"time/{name}": 0.5 for name in _SECONDS}
        found = dict(zip(self._names, values.tolist(), strict=True))
        return {"step": self._step, **found, **seconds}

    def _commit(self) -> None:
        first = (self._step - 1) * GROUPS
        prompts = tuple(f"p{(first + i) % _PROMPTS}" for i in range(GROUPS))
        groups = range(first, first + GROUPS)
        worker = f"local-{self._step % 4}"
        events: list[ev.Event] = [
            ev.Published(self._step - 1, "00000000"),
            ev.Issued(first, prompts, max(0, self._step - 2)),
        ]
        for group in groups:
            version = max(0, self._step - 2)
            count = SAMPLES * TOKENS
            events.append(ev.Generated(group, 1, (worker,), version, version, SAMPLES, count))
            passed = int(self._rng.integers(0, SAMPLES + 1))
            events.append(ev.Scored(group, passed, SAMPLES, None))
        events.append(ev.Trained(self._step, tuple(groups), 2))
        self._checksum = journal.write(
            self._files,
            number=self._step,
            previous=self._checksum,
            step=self._step,
            batch=self._samples(groups, prompts),
            others=None,
            events=[ev.encode(event) for event in events],
        )

    def _samples(self, groups: range, prompts: tuple[str, ...]) -> pa.Table:
        rows = self._rows
        ids = np.repeat(np.array(groups), SAMPLES)
        of_prompt = [name for name in prompts for _ in range(SAMPLES)]
        new = {
            "group": pa.array(ids, pa.int64()),
            "prompt_id": pa.array(of_prompt, pa.string()),
            "prompt": pa.array([f"question {name}" for name in of_prompt], pa.string()),
        }
        for name, values in new.items():
            rows = rows.set_column(rows.column_names.index(name), name, values)
        return rows
