"""``rlax init --data`` without a model: bytes, lengths, splits and a warm start from the data."""

from pathlib import Path
from typing import Any

import pytest
from command_line import rlax
from data_sets import prepare_here, write_lines

from rlax_plugin.base.tokens.byte_level import SIZE
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import load_section, resolve
from rlax_plugin.ports.protocols import BuildContext

WARM = {
    "enabled": True,
    "required": False,
    "steps": 1000,
    "train_every": 2,
    "train_problems": 0,
    "pass_at_1_to": 1.0,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prepare_here(monkeypatch)
    return tmp_path


def written(folder: Path, rows: list[Any], *options: str) -> tuple[Any, dict[str, Any], str]:
    """Section and other keys of what is written for rows, and what the command says."""
    write_lines(folder / "mine.jsonl", rows)
    result = rlax("init", "run.yml", "--data", "mine.jsonl", *options)
    assert result.exit_code == 0, result.output
    return *load_section("run.yml"), result.stdout


def test_lengths_vocabulary_splits_and_warm_start_come_from_the_data(folder: Path) -> None:
    # 16 bytes and two marks of the chat; the answers have 7 bytes and an end.
    rows = [{"question": f"{n:04d} + 1 = ? é.", "answer": f"{n:03d} 4x"} for n in range(800)]
    section, keys, said = written(folder, rows)
    assert section.prompt_source.model_dump() == {
        "name": "jsonl",
        "path": str(folder / "mine.jsonl"),
        "tokenizer": "bytes",
        "held_out": {"validation": 0.1, "test": 0.2},
    }
    assert (section.rollouts.max_prompt_tokens, section.rollouts.max_new_tokens) == (24, 8)
    assert (keys["max_target_length"], keys["vocab_size"]) == (32, SIZE)
    assert section.trainer.options["warm_start"] == WARM | {"batch_rows": 128}
    assert [one.name for one in section.rewards] == ["exact_match"]
    source = registry_for(section).part(
        "prompt_source",
        section.prompt_source,
        "rlax.prompt_source",
        BuildContext.outside_run(section, resolve("run.yml", ())),
    )
    counts = [len(source.prompts(split)) for split in ("train", "validation", "test")]
    assert sum(counts) == 800 and section.evaluation.problems == min(128, counts[2])
    assert "always answers" not in said
    assert f"prompts: {counts[0]} to train on; held out: {counts[1]} validation, {counts[2]} t" in (
        said
    )
    assert "reward: exact_match, because the references of the data are texts" in said
    assert f"about {round(counts[0] / 2)} training prompts, half of them, never on held-out" in said


@pytest.mark.parametrize(
    ("place", "given", "expected"),
    [
        ("run.yml", "rewards.py:correct", "rewards.py:correct"),
        ("configs/run.yml", "own/rewards.py:correct", "../own/rewards.py:correct"),
    ],
)
def test_a_function_is_named_from_the_folder_of_the_config(
    place: str, given: str, expected: str, folder: Path
) -> None:
    from rlax_plugin.tools.commands.init import _reward

    assert _reward(given, (folder / place).parent) == {"function": expected}
    assert _reward("numeric", folder) == {"name": "numeric"}


QUESTION = {"question": "What?"}


@pytest.mark.parametrize(
    ("rows", "expected", "new_tokens", "batch_rows"),
    [
        ([QUESTION | {"answer": "1"}], "1 training prompts have an answer to learn from", 8, 0),
        (
            [{"question": f"{n}", "answer": "a" * (2000 if n % 2 else 30)} for n in range(100)],
            "answers have 256 bytes or more, up to 2,000: a model of this size",
            256,
            8,
        ),
        (
            [{"question": f"{n}" * (999 if n % 9 == 0 else 1), "answer": n} for n in range(100)],
            "questions have more than 1,024 bytes and are left out",
            8,
            16,
        ),
        (
            [{"question": f"{n}", "answer": "" if n % 2 else "yes"} for n in range(100)],
            "questions: a model that always answers it has a pass@1 of 1.00 without",
            8,
            8,
        ),
    ],
)
def test_unusual_data_have_a_rule(
    rows: list[Any], expected: str, new_tokens: int, batch_rows: int, folder: Path
) -> None:
    section, _, said = written(folder, rows)
    assert expected in " ".join(said.split())
    assert section.rollouts.max_new_tokens == new_tokens
    assert section.rollouts.max_prompt_tokens <= 1024
    warm = section.trainer.options.get("warm_start", {"batch_rows": 0})
    assert warm["batch_rows"] == batch_rows
    assert bool(section.prompt_source.options.get("held_out")) == (len(rows) > 1)


def test_options_name_columns_with_unusual_names(folder: Path) -> None:
    rows = [{"ask": f"Spell {n}.", "level": n, "right": str(n)} for n in range(100)]
    columns = ("--question", "ask", "--reference", "right")
    section, _, said = written(folder, rows, *columns)
    options = section.prompt_source.options
    assert (options["question"], options["reference"]) == ("ask", "right")
    assert section.rewards[0].name == "numeric" and "no column was recognised" not in said
    _, _, said = written(folder, rows, *columns[:2], "--reward", "length", "--force")
    found = "Columns beside the question: 'level', 'right'; rlax.prompt_source.reference names"
    assert found in " ".join(said.split())
    for given, expected in {
        (): "there are: 'ask', 'level', 'right'. --question COLUMN names it",
        ("--question", "asks"): "has no column 'asks'; did you mean 'ask'?",
        ("--question", "ask", "--reference", "rihgt"): "did you mean 'right'?",
    }.items():
        result = rlax("init", "other.yml", "--data", "mine.jsonl", *given)
        assert result.exit_code == 2 and expected in " ".join(result.stderr.split())
    result = rlax("init", "other.yml", "--reference", "right")
    assert "--reference = 'right': needs --data" in result.stderr


def test_without_answers_a_reward_has_to_be_named(folder: Path) -> None:
    rows = [{"question": f"Say {n}."} for n in range(100)]
    section, _, said = written(folder, rows, "--reward", "length")
    assert section.rollouts.max_new_tokens == 64 and "warm_start" not in section.trainer.options
    assert "warning: 0 training prompts have an answer to learn from" in said
    result = rlax("init", "other.yml", "--data", "mine.jsonl")
    assert result.exit_code == 2 and "has no column of references, such as answer" in result.stderr


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "What?", "label": 3}, "must name the column of the question; there are: 'label'"),
        (
            QUESTION | {"answer": [1, 2]},
            "mine.jsonl, line 1, has [1, 2] in 'answer', which must be",
        ),
        (b'{"question": "\xff", "answer": 1}', "mine.jsonl, line 1, is not in UTF-8 (byte 0xff"),
        (QUESTION | {"prompt": "?"}, "must name a column, because there are 'question' and"),
        ({"question": "?" * 2000, "answer": 1}, "has only questions of more than 1,024 bytes"),
    ],
)
def test_what_cannot_be_used_is_one_message(row: Any, expected: str, folder: Path) -> None:
    write_lines(folder / "mine.jsonl", [row])
    result = rlax("init", "run.yml", "--data", "mine.jsonl")
    assert result.exit_code == 2 and expected in result.stderr
    assert not (folder / "run.yml").exists()


def conversations(count: int, *more: dict[str, str]) -> list[Any]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"{n} + 1"},
                {"role": "assistant", "content": f"It is certainly {n + 1}."},
                *more,
            ]
        }
        for n in range(count)
    ]


def test_demonstrations_come_before_rl_and_fit_into_a_row(folder: Path) -> None:
    rows = [{"question": f"{n:04d} + 1 = ?", "answer": f"{n + 1}"} for n in range(100)]
    write_lines(folder / "shown.jsonl", conversations(400))
    section, keys, said = written(folder, rows, "--demonstrations", "shown.jsonl", "--steps", "2")
    assert keys["checkpoint_period"] == 50  # not 2: the supervised training has it, too
    assert section.trainer.options["warm_start"] == {
        "enabled": True,
        "data": {
            "name": "jsonl",
            "path": str(folder / "shown.jsonl"),
            "tokenizer": "bytes",
            "held_out": {"validation": 0.05},
        },
        "epochs": 10,
        "batch_rows": 16,
        "learning_rate": 0.001,
        "check_every": 20,
    }
    # 7 bytes of a question, 20 of an answer, two marks and an end are 30, of which 32 has room.
    assert section.rollouts.max_prompt_tokens == 16 and section.rollouts.max_new_tokens == 16
    assert keys["max_target_length"] == 32
    assert "path: shown.jsonl" in (folder / "run.yml").read_text()
    assert "warm start: supervised, on 383 demonstrations" in said and "answers of" not in said


def test_demonstrations_need_data_and_rows_that_are_some(folder: Path) -> None:
    write_lines(folder / "shown.jsonl", conversations(30, {"role": "user", "content": "Thanks"}))
    write_lines(folder / "mine.jsonl", [{"question": f"{n}?", "answer": "1"} for n in range(20)])
    alone = rlax("init", "run.yml", "--demonstrations", "shown.jsonl")
    assert alone.exit_code and "--demonstrations = 'shown.jsonl': needs --data" in alone.output
    both = ("--data", "mine.jsonl", "--demonstrations", "shown.jsonl")
    wrong = rlax("init", "run.yml", *both)
    assert wrong.exit_code and "--demonstrations = 'shown.jsonl': " in wrong.output
    assert "shown.jsonl, line 1, ends with a message of the role" in wrong.output
    assistant = {"role": "assistant", "content": "Ask me."}
    shown = conversations(30)
    write_lines(folder / "shown.jsonl", [{"messages": [assistant, *r["messages"]]} for r in shown])
    begun = rlax("init", "run.yml", *both)
    assert begun.exit_code and "line 1, begins with the assistant" in begun.output
    gone = rlax("init", "run.yml", "--data", "mine.jsonl", "--demonstrations", "gone.jsonl")
    assert gone.exit_code and "--demonstrations = 'gone.jsonl': " in gone.output
