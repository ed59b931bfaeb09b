"""Runs of real processes on a data set: killed and resumed it goes on in order, or not at all."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rlax_curation
from data_sets import write_lines
from processes import finished
from rlax_datasets import JsonlConfig, JsonlSource
from runs import CONFIG, DEADLINE_S, HELPERS, plugins
from small_tokenizers import CHATML, characters

from rlax_plugin.api import Tokenizer
from rlax_plugin.commands.audit import audit
from rlax_plugin.pass_rates.table import PassRateTable
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles

KINDS = ("sum", "sum", "sum", "word")
ROWS = [
    {"prompt": f"{n}+{n % 7}?", "answer": n + n % 7, "kind": KINDS[n % 4], "n": [n]}
    for n in range(120)
]
ROWS[7]["prompt"] = "far too long " * 5
OPTIONS = {
    "path": "sums.jsonl",
    "held_out": {"test": 0.2},
    "domain": "kind",
    "weights": {"sum": 1, "word": 2},
    "stop_strings": ["="],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("data")
    characters(directory / "model", template=CHATML)
    write_lines(directory / "sums.jsonl", ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HELPERS)
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        yield directory


def train(
    directory: Path, *more: str, kill_at: str = "", **options: str
) -> subprocess.CompletedProcess[str]:
    where = {"name": "toy_jsonl", "tokenizer": str(directory / "model")}
    source = where | OPTIONS | options
    return finished(
        "train",
        CONFIG,
        plugins("chat_numbers", "toy_jsonl"),
        "steps=5",
        f"rlax.prompt_source={json.dumps(source)}",
        "rlax.rewards=[{name: digits}]",
        "rlax.curation.filters=[]",
        "rlax.rollouts.max_prompt_tokens=60",
        "rlax.evaluation.problems=2",
        "rlax.launcher.workers=1",
        "rlax.trainer.checkpoint_every=2",
        *more,
        cwd=directory,
        kill_at=kill_at,
        timeout_s=DEADLINE_S,
    )


def issued(files: RunFiles) -> list[str]:
    """Ids of the prompts of all groups, in issue order."""
    events = (event for segment, _ in journal.read(files) for event in segment.events)
    return [one for event in events if isinstance(event, ev.Issued) for one in event.prompts]


def test_a_killed_run_goes_on_with_the_next_prompts(directory: Path) -> None:
    assert train(directory, kill_at="commit-ended:3").returncode < 0
    assert not (directory / "runs/testing/summary.json").exists()
    done = train(directory)
    assert done.returncode == 0, done.stdout + done.stderr
    files = RunFiles(directory / "runs/testing")
    assert audit(files).violation is None
    found = issued(files)
    assert len(found) >= 20

    tokenizer = Tokenizer.load(directory / "model", "tokenizer_path")
    config = JsonlConfig.model_validate({**OPTIONS, "path": str(directory / "sums.jsonl")})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        table = JsonlSource(config, tokenizer, max_tokens=60).prompts("train")
    rng = np.random.default_rng([0, 1])
    chosen = rlax_curation.Shuffled().choose(table, PassRateTable(len(table), 1), rng, len(found))
    assert found == [table.id_at(index) for index in chosen]
    kinds = [table[index].metadata["kind"] for index in chosen]
    assert abs(kinds.count("word") - 2 * len(kinds) / 3) < 1
    assert "too long" in table.skipped


def test_data_that_changed_is_refused_on_resume(directory: Path) -> None:
    rows = [*ROWS[:40], {**ROWS[40], "answer": 0}, *ROWS[41:]]
    write_lines(directory / "sums.jsonl", rows)
    refused = train(directory, "steps=7")
    assert refused.returncode == 2
    said = refused.stdout + refused.stderr
    assert "has other prompts than when this run began (training: " in said
    assert "sums.jsonl, line 41; " in said and "sums.jsonl was written to since" in said
    assert said.count("error:") == 1
    write_lines(directory / "sums.jsonl", ROWS)  # again as it was
    done = train(directory, "steps=7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert audit(RunFiles(directory / "runs/testing")).violation is None


def test_data_that_cannot_be_used_is_an_error_before_anything_is_started(directory: Path) -> None:
    lines = [*ROWS[:30], '{"prompt": "1+1?", "answer"', *ROWS[30:]]
    write_lines(directory / "broken.jsonl", lines)
    failed = train(directory, "run_name=broken", path="broken.jsonl")
    assert failed.returncode == 2
    said = failed.stdout + failed.stderr
    assert "error: rlax.prompt_source.broken = 'error': " in said
    assert "broken.jsonl, line 31, is no JSON: Expecting ':' delimiter" in said
    assert not (directory / "runs/broken/journal").exists()
