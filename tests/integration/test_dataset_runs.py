"""Runs on a mixture of data sets: of JSON lines, of ``datasets`` and of TensorFlow Datasets.

Killed in the middle, a run goes on in the mixture's order; with other data or weights it does not
start. ``tests/data/tfds_sums`` was written by ``tfds.dataset_builders.store_as_tfds_dataset`` with
``{"prompt": Text(), "answer": np.int64}`` and the rows ``{"prompt": f"t{n}?", "answer": n}``, n
below 30: writing it anew for each test would take longer than the test.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rlax_curation
from command_line import rlax
from data_sets import write_lines
from processes import finished, python_path
from runs import CONFIG, DEADLINE_S, HELPERS, ROOT, plugins, rows
from small_tokenizers import CHATML, characters
from toy_data import SOURCES

from rlax_plugin.api import PromptTable, Tokenizer
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.data.prompts.source import tables_of
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit

STEPS = 6
SUMS = [
    {"prompt": f"s{n}?", "answer": n, "kind": ("odd", "even", "even")[n % 3], "n": [n]}
    for n in range(70)
]
SUMS[7]["prompt"] = "far too long " * 5
WEIGHTS = {"sums": 5.0, "words": 3.0, "rest": 2.0}
SHARES = {"sums/odd": 1 / 6, "sums/even": 1 / 3, "words": 0.3, "rest": 0.2}
# The small one comes again and again, with a new order in each of its epochs.
OPTIONS: dict[str, dict[str, Any]] = {
    "sums": {
        "name": "toy_jsonl",
        "path": "sums.jsonl",
        "held_out": {"test": 0.3},
        "domain": "kind",
        "weights": {"odd": 1, "even": 2},
    },
    "words": {"name": "toy_hf", "dataset": "words"},
    "rest": {
        "name": "toy_tfds",
        "dataset": str(ROOT / "tests/data/tfds_sums/1.0.0"),
        "held_out": {"test": 0.3},
    },
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    import datasets

    directory = tmp_path_factory.mktemp("data")
    characters(directory / "model", template=CHATML)
    write_lines(directory / "sums.jsonl", SUMS)
    words = [{"prompt": f"w{n}?", "answer": n} for n in range(5)]
    datasets.Dataset.from_list(words).save_to_disk(str(directory / "words"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(HELPERS))
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        patch.chdir(directory)
        yield directory


def sources(**weights: float) -> dict[str, Any]:
    part = {"tokenizer": "model", "stop_strings": ["="]}
    given = WEIGHTS | weights
    return {name: OPTIONS[name] | part | {"weight": given[name]} for name in OPTIONS}


def arguments(*more: str, **parts: Any) -> tuple[str, ...]:
    choice = {"name": "mixture", "sources": parts or sources()}
    return (
        "train",
        CONFIG,
        plugins("chat_numbers", "toy_data"),
        f"steps={STEPS}",
        f"rlax.prompt_source={json.dumps(choice)}",
        "rlax.rewards=[{name: digits}]",
        "rlax.curation.filters=[]",
        "rlax.rollouts.max_prompt_tokens=60",
        "rlax.evaluation.problems=7",
        "rlax.launcher.workers=1",
        "rlax.deadlines.prompts_s=180",  # importing TensorFlow, where other work is going on
        "rlax.trainer.checkpoint_every=2",
        *more,
    )


def refusal(*more: str, **parts: Any) -> str:
    """What a run says that does not start: in this process, which takes a second."""
    done = rlax(*arguments(*more, **parts))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.exit_code == 2 and said.count("error:") == 1, said
    return said


def issued(files: RunFiles) -> list[str]:
    """Ids of the prompts of all groups, in issue order."""
    events = (event for segment, _ in journal.read(files) for event in segment.events)
    return [one for event in events if isinstance(event, ev.Issued) for one in event.prompts]


def expected() -> PromptTable:
    """The mixture's training prompts, from what the runs have prepared."""
    tokenizer = Tokenizer.load("model", "tokenizer_path")
    found = {}
    for name, chosen in sources().items():
        options = {key: one for key, one in chosen.items() if key not in ("name", "weight")}
        config_class, source = SOURCES[chosen["name"]]
        made = source(config_class.model_validate(options), tokenizer, max_tokens=60)
        found[name] = tables_of(made, deadline_s=60, progress=lambda split, rows: None)["train"]
    return PromptTable.joined(found, WEIGHTS)


@pytest.mark.long
def test_a_killed_run_goes_on_in_the_order_of_the_mixture(directory: Path) -> None:
    files = RunFiles(directory / "runs/testing")
    killed = finished(*arguments(), cwd=directory, kill_at="commit-ended:3", timeout_s=DEADLINE_S)
    assert killed.returncode < 0, killed.stdout + killed.stderr
    assert not (directory / "runs/testing/summary.json").exists()
    before = len(issued(files))

    # Neither with other data nor with other weights.
    write_lines(directory / "sums.jsonl", [*SUMS[:38], {**SUMS[38], "answer": 0}, *SUMS[39:]])
    said = refusal()
    assert "= 'mixture': has other prompts than when this run began (training: " in said
    assert "sums.jsonl, line 39; " in said and "sums.jsonl was written to since" in said
    write_lines(directory / "sums.jsonl", SUMS)  # again as it was
    said = refusal(**sources(words=4.0))
    assert "(rlax.prompt_source.sources.words.weight is 3.0 there and 4.0 here)" in said
    assert len(issued(files)) == before

    done = finished(*arguments(), cwd=directory, timeout_s=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert audit(files).violation is None
    found = issued(files)
    assert 8 <= before < len(found) and len(found) >= 4 * STEPS

    table = expected()
    assert table.domains is not None and table.domains.names == tuple(SHARES)
    rng = np.random.default_rng([0, 1])
    chosen = rlax_curation.Shuffled().choose(table, PassRateTable(len(table), 1), rng, len(found))
    assert found == [table.id_at(index) for index in chosen]
    # Exact proportions also after every single prompt, whatever the sizes.
    names = [table.domains.names[table.domains.of_n[index]] for index in chosen]
    for end in range(1, len(names) + 1):
        counts = Counter(names[:end])
        assert all(abs(counts[name] - end * share) < 1.0 for name, share in SHARES.items())
    assert Counter(names)["words"] > 5
    assert "sums: too long" in table.skipped
    # What trained came from all three libraries.
    trained = [row for row in rows(directory / "runs/testing") if row["state"] == "trained"]
    assert {row["prompt"][0] for row in trained} == {"s", "w", "t"}
