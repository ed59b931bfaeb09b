"""A resumed run has the prompts that it began with, or says which are others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from data_sets import jsonl, tables, write_lines

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.of_run import AskedSet, RunPrompts
from rlax_plugin.data.prompts.record import record_prompts, training_prompts
from rlax_plugin.testing.builders import make_prompt

ROWS = [{"question": f"{n}?", "answer": n} for n in range(50)]
SECTION = RlaxSection.model_validate(
    {
        "prompt_source": {"name": "jsonl"},
        "rewards": [{"name": "x"}],
        "evaluation": {"sets": {"far": {"prompt_source": {"name": "parquet"}}}},
    }
)
SOURCE: Any = SimpleNamespace(identity=dict)  # a fake: its prompts are given
NOW = "bring the data back, or begin another run with another run_name"


def of_file(path: Path) -> RunPrompts:
    source = jsonl(path)
    return RunPrompts(source, tables(source)["train"], ())


def begun(directory: Path) -> RunFiles:
    files = RunFiles(directory / "run")
    files.put("journal/00000001.json", b"{}")
    return files


def hold(files: RunFiles, prompts: RunPrompts) -> None:
    record_prompts(files, SECTION, prompts)


def refusal(files: RunFiles, prompts: RunPrompts) -> str:
    with pytest.raises(ConfigError) as raised:
        hold(files, prompts)
    return str(raised.value)


def test_the_same_prompts_are_taken_also_from_a_file_written_anew(tmp_path: Path) -> None:
    files, path = RunFiles(tmp_path / "run"), write_lines(tmp_path / "a.jsonl", ROWS)
    hold(files, of_file(path))
    begun(tmp_path)
    write_lines(path, [*ROWS, ROWS[3]])  # nothing but a duplicate is new
    hold(files, of_file(path))


def test_prompts_that_changed_are_refused_with_file_counts_and_place(tmp_path: Path) -> None:
    files, path = RunFiles(tmp_path / "run"), write_lines(tmp_path / "a.jsonl", ROWS)
    hold(files, of_file(path))
    size = path.stat().st_size
    begun(tmp_path)

    write_lines(path, [*ROWS[:20], {"question": "20?", "answer": "twenty"}, *ROWS[21:]])
    assert refusal(files, of_file(path)) == (
        "rlax.prompt_source = 'jsonl': has other prompts than when this run began (training: 50 "
        f"then, 50 now; the first that differs is number 21, now {path}, line 21; {path} was "
        f"written to since ({size:,} bytes then, {path.stat().st_size:,} now)): {NOW}"
    )
    write_lines(path, ROWS[:40])
    assert "(training: 50 then, 40 now; the first 40 are the same;" in refusal(files, of_file(path))
    write_lines(path, ROWS[::-1])
    said = refusal(files, of_file(path))
    assert f"the first that differs is number 1, now {path}, line 1;" in said
    other = write_lines(tmp_path / "b.jsonl", ROWS[1:])
    assert f"{path} is gone; {other} is new" in refusal(files, of_file(other))


def test_other_weights_would_change_the_order(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**row, "kind": row["answer"] % 2} for row in ROWS])

    def prompts(zero: float, one: float) -> RunPrompts:
        source = jsonl(path, domain="kind", weights={"0": zero, "1": one})
        return RunPrompts(source, tables(source)["train"], ())

    files = RunFiles(tmp_path / "run")
    hold(files, prompts(1, 3))
    begun(tmp_path)
    hold(files, prompts(2, 6))  # the same shares
    assert refusal(files, prompts(3, 2)) == (
        "rlax.prompt_source = 'jsonl': has other weights than when this run began (training: 0 had "
        "a share of 0.25 then, 0.6 now), so the prompts would come in another order: bring the "
        "weights back, or begin another run with another run_name"
    )


def test_a_run_that_has_computed_nothing_takes_others(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "run")
    for rows in (ROWS, ROWS[:9]):
        hold(files, of_file(write_lines(tmp_path / "a.jsonl", rows)))
    begun(tmp_path)
    hold(files, of_file(tmp_path / "a.jsonl"))
    assert "(training: 9 then, 50 now; the first 9 are the same;" in refusal(
        files, of_file(write_lines(tmp_path / "a.jsonl", ROWS))
    )


def test_an_evaluation_set_that_came_later_is_held_to_its_prompts_from_then_on(tmp_path) -> None:
    def prompts(*texts: str) -> RunPrompts:
        sets = SECTION.evaluation.all_sets()
        named = dict(zip(("far", *sets), texts, strict=False))  # the later one in front
        asked = [AskedSet(name, sets[name], SOURCE, [make_prompt(t)]) for name, t in named.items()]
        return RunPrompts(SOURCE, [make_prompt("a")], asked[::-1])

    files = RunFiles(tmp_path / "run")
    hold(files, RunPrompts(SOURCE, [make_prompt("a")], ()))
    begun(tmp_path)
    hold(files, prompts("b", "c"))
    hold(files, prompts("b", "c"))
    assert "evaluation set far: 1 then, 1 now" in refusal(files, prompts("other", "c"))


def test_other_sources_and_evaluation_sets_are_held_to_it_too(tmp_path: Path) -> None:
    def prompts(train: str, main: str, far: str) -> RunPrompts:
        sets = SECTION.evaluation.all_sets()
        asked = [
            AskedSet(name, sets[name], SOURCE, [make_prompt(text)])
            for name, text in zip(sets, (main, far), strict=True)
        ]
        return RunPrompts(SOURCE, [make_prompt("1"), make_prompt(train)], asked)

    files = RunFiles(tmp_path / "run")
    hold(files, prompts("2", "3", "4"))
    begun(tmp_path)
    hold(files, prompts("2", "3", "4"))
    assert refusal(files, prompts("5", "3", "4")) == (
        "rlax.prompt_source = 'jsonl': has other prompts than when this run began (training: 2 "
        f"then, 2 now; the first that differs is number 2, now '5'): {NOW}"
    )
    said = refusal(files, prompts("2", "6", "4"))
    assert said.startswith("rlax.prompt_source = 'jsonl': has other") and "(evaluation set" in said
    assert refusal(files, prompts("2", "3", "7")).startswith(
        "rlax.evaluation.sets.far.prompt_source = 'parquet': has other prompts than when this run "
        "began (evaluation set far: 1 then, 1 now"
    )


def test_the_number_of_training_prompts_is_recorded(tmp_path: Path) -> None:
    files = begun(tmp_path)
    assert training_prompts(files) is None
    hold(files, RunPrompts(SOURCE, [make_prompt("1"), make_prompt("2")], ()))
    assert training_prompts(files) == 2
