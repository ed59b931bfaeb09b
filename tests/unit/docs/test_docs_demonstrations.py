"""The commands and the config of docs/your_demonstrations.md work as they stand there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from command_line import rlax
from data_sets import jsonl, prepare_here, tables, write_lines
from documents import fences, read
from rlax_maxtext.options import TrainerOptions

from rlax_plugin.config.loading import load_section
from rlax_plugin.config.validation import validate

PAGE = read("your_demonstrations.md")
SHOWN = [json.loads(line) for line in fences(PAGE, "json")[0].splitlines()]
CONFIG = yaml.safe_load(fences(PAGE, "yaml")[0])
WORDS = [
    f"{one}{other}"
    for one in "abcdefghijklmnop"
    for other in ("ank", "est", "ilt", "old", "umble", "yg")
]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    prepare_here(monkeypatch)
    more = [
        {
            "messages": [
                {"role": "user", "content": f"Spell backward: {one}"},
                {"role": "assistant", "content": one[::-1]},
            ]
        }
        for one in WORDS
    ]
    write_lines(tmp_path / "demonstrations.jsonl", [*SHOWN, *more])
    questions = [{"question": f"Spell backward: {one}", "answer": one[::-1]} for one in WORDS]
    write_lines(tmp_path / "questions.jsonl", questions)
    return tmp_path


def test_two_commands_from_files_to_a_config() -> None:
    init, train = (shlex.split(line)[1:] for line in fences(PAGE, "sh")[0].splitlines())
    done = rlax(*init)
    assert done.exit_code == 0, done.output
    assert "warm start: supervised, on " in done.stdout and train == ["train", "mine.yml"]
    warm = load_section("mine.yml")[0].trainer.options["warm_start"]
    assert warm["data"]["held_out"] == {"validation": 0.05}
    checked = rlax("check", "--fast", "mine.yml")
    assert checked.exit_code == 0, checked.output
    alone = shlex.split(fences(PAGE, "sh")[1].splitlines()[0])[1:]
    assert rlax("check", "--fast", *alone[1:]).exit_code == 0


def test_its_options_are_valid_and_its_rows_train_the_assistant(directory: Path) -> None:
    options = CONFIG["rlax"]["trainer"]
    warm = validate(
        TrainerOptions, {"warm_start": options["warm_start"]}, "rlax.trainer"
    ).warm_start
    assert warm.data is not None and warm.data.name == "jsonl"
    settings = {k: v for k, v in warm.data.options.items() if k != "path"}
    source = jsonl(directory / str(warm.data.options["path"]), chat=True, **settings)
    found = tables(source.of_demonstrations(warm.turns, 1000))
    texts = {
        source.tokenizer.decode(table[row].tokens[begin:end], special=True)
        for table in found.values()
        for row in range(len(table))
        for begin, end in table.spans_at(row)
    }
    assert texts == {f"{one[::-1]}<|im_end|>" for one in (*WORDS, "bird", "chess")}
