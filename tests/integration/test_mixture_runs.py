"""A run of real processes on a mixture: killed in the middle it goes on in the mixture's order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rlax_curation
from data_sets import write_lines
from processes import finished
from rlax_datasets import JsonlConfig, JsonlSource
from runs import CONFIG, DEADLINE_S, HELPERS, plugins
from small_tokenizers import CHATML, characters

from rlax_plugin.api import PromptTable, Tokenizer
from rlax_plugin.commands.audit import audit
from rlax_plugin.pass_rates.table import PassRateTable
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles

# The small one comes again and again, with a new order in each of its epochs.
SIZES, WEIGHTS = {"sums": 70, "words": 5, "rest": 30}, {"sums": 5.0, "words": 3.0, "rest": 2.0}
STEPS = 6


def options(name: str) -> dict[str, Any]:
    held_out = {"test": 0.3} if name != "words" else {}
    return {"path": f"{name}.jsonl", "stop_strings": ["="], "held_out": held_out}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("mixture")
    characters(directory / "model", template=CHATML)
    for name, size in SIZES.items():
        rows = [{"prompt": f"{name[0]}{n}?", "answer": n, "of": name} for n in range(size)]
        write_lines(directory / f"{name}.jsonl", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HELPERS)
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        yield directory


def train(directory: Path, *more: str, kill_at: str = "") -> tuple[int, str]:
    part = {"name": "toy_jsonl", "tokenizer": str(directory / "model")}
    sources = {name: part | options(name) | {"weight": WEIGHTS[name]} for name in SIZES}
    done = finished(
        "train",
        CONFIG,
        plugins("chat_numbers", "toy_jsonl"),
        f"steps={STEPS}",
        f"rlax.prompt_source={json.dumps({'name': 'mixture', 'sources': sources})}",
        "rlax.rewards=[{name: digits}]",
        "rlax.curation.filters=[]",
        "rlax.rollouts.max_prompt_tokens=60",
        "rlax.evaluation.problems=7",
        "rlax.launcher.workers=1",
        "rlax.trainer.checkpoint_every=2",
        *more,
        cwd=directory,
        kill_at=kill_at,
        timeout_s=DEADLINE_S,
    )
    return done.returncode, done.stdout + done.stderr


def issued(files: RunFiles) -> list[str]:
    """Ids of the prompts of all groups, in issue order."""
    events = (event for segment, _ in journal.read(files) for event in segment.events)
    return [one for event in events if isinstance(event, ev.Issued) for one in event.prompts]


@pytest.mark.slow
def test_a_killed_run_goes_on_in_the_order_of_the_mixture(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(directory / "runs/testing")
    code, said = train(directory, kill_at="commit-ended:3")
    assert code < 0, said
    before = len(issued(files))
    code, said = train(directory)
    assert code == 0, said
    assert audit(files).violation is None
    found = issued(files)
    assert 8 <= before < len(found) and len(found) >= 4 * STEPS

    monkeypatch.chdir(directory)
    tokenizer = Tokenizer.load(directory / "model", "tokenizer_path")
    tables = {
        name: JsonlSource(
            JsonlConfig.model_validate(options(name)), tokenizer, max_tokens=60
        ).prompts("train")
        for name in SIZES
    }
    table = PromptTable.joined(tables, WEIGHTS)
    rng = np.random.default_rng([0, 1])
    chosen = rlax_curation.Shuffled().choose(table, PassRateTable(len(table), 1), rng, len(found))
    assert found == [table.id_at(index) for index in chosen]
    # Exact proportions also after every single prompt, whatever the sizes.
    names = [table[index].metadata["of"] for index in chosen]
    for end in range(1, len(names) + 1):
        counts = Counter(names[:end])
        assert all(abs(counts[name] - end * WEIGHTS[name] / 10) < 1.0 for name in SIZES)
    assert Counter(names)["words"] > SIZES["words"]


def test_a_broken_part_is_named_by_its_place_in_the_mixture(directory: Path) -> None:
    write_lines(directory / "bad.jsonl", [{"prompt": "a?"}, "{"])
    part: dict[str, Any] = {"name": "toy_jsonl", "tokenizer": str(directory / "model")}
    part |= {"path": "bad.jsonl", "stop_strings": ["="]}
    lone = json.dumps({"name": "mixture", "sources": {"bad": part}})
    code, said = train(directory, "run_name=bad", f"rlax.prompt_source={lone}")
    assert code == 2 and said.count("error:") == 1
    assert "rlax.prompt_source.sources.bad.broken = 'error': " in said
    assert "bad.jsonl, line 2, is no JSON" in said
