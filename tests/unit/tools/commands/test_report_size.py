"""A page holds what it can of a run's rollouts, and says how many it leaves out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Score, ScoredGroup
from rlax_plugin.run.state import journal, samples
from rlax_plugin.testing.builders import (
    make_batch,
    make_episode,
    make_group,
    make_prompt,
    make_sampled,
)
from rlax_plugin.tools.commands.report.recorded_samples import GroupAt
from rlax_plugin.tools.commands.report.rollouts import choose, read_rollouts
from rlax_plugin.tools.commands.report.run import RunData, no_progress
from rlax_plugin.tools.commands.report.write import write_report

LETTERS = np.array(list("etaoinshrdlu"))
WORDS = np.array(
    ["".join(np.random.default_rng(i).choice(LETTERS, 1 + i % 7)) for i in range(3000)]
)


def group(number: int, rng: np.random.Generator, lengths: list[int]):
    """A group as a large model generates it: a vocabulary of 50,000, four characters a token."""
    made = make_group([0.0] * len(lengths), id=number, lengths=lengths)

    def text(length: int) -> str:
        return " ".join(rng.choice(WORDS, length))

    samples = [
        make_sampled(
            tokens=rng.integers(0, 50_000, length, dtype=np.int32),
            logprobs=-rng.exponential(1.0, length).astype(np.float32),
        )
        for length in lengths
    ]
    prompt = make_prompt(f"question {number % 400}: {text(30)}", id=str(number % 400))
    return replace(
        made,
        prompt=prompt,
        episodes=tuple(
            make_episode(one, index=index, prompt=prompt, text=text(len(one.tokens)))
            for index, one in enumerate(samples)
        ),
        scores=tuple(Score(float(rng.random())) for _ in samples),
    )


def write_step(files: RunFiles, step: int, groups: list[ScoredGroup]) -> None:
    rows = samples.of_batch(make_batch(step, groups))
    files.put(journal.samples_name(step), samples.to_parquet(step, rows))


def test_ten_thousand_rollouts_fit_into_ten_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    files = RunFiles(tmp_path / "run")
    for step in range(1, 26):
        lengths = rng.integers(8, 65, (50, 8)).tolist()
        groups = [group(50 * step + i, rng, of) for i, of in enumerate(lengths)]
        write_step(files, step, groups)
    path = write_report(files.location())
    assert path.stat().st_size < 10e6
    assert "all 10,000 recorded" in path.read_text()


def test_steps_are_evenly_represented():
    groups = [
        GroupAt("file", 40 * step + i, step, True, 8, size=1000.0)
        for step in range(1, 101)
        for i in range(20)
    ]
    chosen = choose(groups, max_rollouts=2400, max_bytes=1e9)
    assert sum(g.samples for g in chosen) == 2400
    by_step = Counter(g.step for g in chosen)
    assert len(by_step) == 100 and set(by_step.values()) <= {2, 3, 4}
    chosen = choose(groups, max_rollouts=10**6, max_bytes=50_000)
    assert len(chosen) == 50
    assert choose(groups, 10**6, 1e9) == sorted(groups, key=lambda g: (g.step, g.group))
    large = GroupAt("file", 0, 1, True, samples=8, size=60_000.0)
    assert len(choose([large, *groups], max_rollouts=10**6, max_bytes=50_000)) == 50


def test_groups_that_are_too_large_for_a_page_are_told(tmp_path):
    files, rng = RunFiles(tmp_path), np.random.default_rng(1)
    write_step(files, 1, [group(0, rng, [400_000] * 3), group(1, rng, [5] * 3)])
    run = RunData("run", "")
    found = read_rollouts(files, run, no_progress)
    assert (found.shown, found.recorded) == (3, 6)
    assert "1 groups of rollouts, each of which is too large for a page" in run.missing
