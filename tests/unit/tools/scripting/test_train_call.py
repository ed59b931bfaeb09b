"""The files that ``train`` writes, and the errors before it starts anything."""

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from data_sets import prepare_here
from documents import ROOT
from typer.testing import CliRunner

import rlax_plugin
from rlax_plugin.base.errors import ConfigError, UnknownKeyError
from rlax_plugin.config.loading import resolve
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.scripting import training

TESTING = str(ROOT / "tests/configs/testing.yml")


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The configs of the runs that would have been started."""
    found: list[Path] = []

    class NotStarted:
        def __init__(self, config: Path, log: Path):
            found.append(config)

    monkeypatch.setattr(training, "Started", NotStarted)
    prepare_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return found


def test_without_a_model_the_config_is_that_of_rlax_init(started: list[Path]) -> None:
    run = rlax_plugin.train(
        steps=12,
        name="sums",
        config={
            "rlax.rollouts.group_size": 4,
            "rlax.rollouts.groups_per_step": 8,
            "rlax.seed": 7,
            "learning_rate": 1e-4,
        },
    )
    assert run.config == started[0] == Path("configs/sums/sums.yml")
    assert run.directory == str(Path("runs/sums").absolute())
    given = ["init", "sums.yml", "--steps", "12", "--group-size", "4", "--groups-per-step", "8"]
    assert CliRunner().invoke(app, given).exit_code == 0
    assert Path("configs/sums/init.yml").read_text() == Path("sums.yml").read_text()
    found = resolve(run.config)
    assert (found.section.seed, found.maxtext["learning_rate"]) == (7, 1e-4)
    assert found.section.rollouts.group_size == 4 and found.maxtext["steps"] == 12


def test_the_folder_of_data_and_functions_is_private_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        rlax_plugin.train(model=TESTING, name="sums")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(Path(one).stat().st_mode) for one in ("configs", "configs/sums")]
    assert modes == [0o775, 0o700]


def test_a_config_to_start_from_is_changed_by_the_arguments() -> None:
    run = rlax_plugin.train(model=TESTING, preset="grpo", steps=3, rewards=["even", "even"])
    assert run.config is not None and run.config.name == "run-1.yml"
    found = resolve(run.config)
    assert found.section.objective.preset == "grpo" and found.maxtext["run_name"] == "run-1"
    assert [one.name for one in found.section.rewards] == ["even", "even"]
    assert found.section.rollouts == resolve(TESTING).section.rollouts
    assert yaml.safe_load(run.config.read_text())["steps"] == 3
    Path("runs/run-2").mkdir(parents=True)
    assert rlax_plugin.train(model=TESTING).name == "run-3"


def test_the_same_call_continues_a_run_and_another_one_does_not() -> None:
    given: dict[str, Any] = {"model": TESTING, "name": "a", "steps": 3}
    rlax_plugin.train(**given)
    rlax_plugin.train(**given | {"steps": 4})  # nothing has been computed with the first one
    Path("runs/a/checkpoints/1").mkdir(parents=True)
    rlax_plugin.train(**given | {"steps": 4})
    with pytest.raises(ConfigError, match=r"a.yml differs\): choose another name") as caught:
        rlax_plugin.train(**given)
    assert caught.value.key == "name"
    assert resolve("configs/a/a.yml").maxtext["steps"] == 4
    (Path("runs/a/checkpoints/1")).rmdir()
    Path("configs/a/a.yml").write_text("steps: 5\n")
    with pytest.raises(ConfigError, match="was not written by train, or was edited"):
        rlax_plugin.train(**given)
    assert Path("configs/a/a.yml").read_text() == "steps: 5\n"


def test_file_that_a_later_call_no_longer_needs_is_removed() -> None:
    Path("own.py").write_text("def short(completion):\n    return 1.0\n")
    rlax_plugin.train(model=TESTING, name="a", rewards=["own.py:short"])
    assert Path("configs/a/own.py").exists()
    rlax_plugin.train(model=TESTING, name="a", rewards=["even"])
    assert not Path("configs/a/own.py").exists() and Path("own.py").exists()


def test_a_folder_of_other_files_keeps_them() -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("notes")
    with pytest.raises(UnknownKeyError):
        rlax_plugin.train(model=TESTING, folder="mine", name="a", config={"rlax.sead": 1})
    rlax_plugin.train(model=TESTING, folder="mine", name="a")
    assert Path("mine/notes.txt").read_text() == "notes"
    assert Path("mine/a.yml").exists() and not Path("configs").exists()


def test_the_columns_of_the_data_may_be_named_in_config() -> None:
    rows = [{"my text": f"{number}+1", "right": number + 1, "level": 1} for number in range(12)]
    options = {"question": "my text", "reference": "right", "metadata": ["level"]}
    ways: tuple[dict[str, Any], ...] = (
        {f"rlax.prompt_source.{key}": value for key, value in options.items()},
        {"rlax.prompt_source": options},
        {"rlax": {"prompt_source": options}},
    )
    first, *others = (training._settings(config, {}) for config in ways)
    assert others == [first, first]  # of which train knows nothing else
    run = rlax_plugin.train(data=rows, config=ways[-1], name="a")
    assert run.config is not None
    found = resolve(run.config)
    source = found.section.prompt_source
    assert source.name == "jsonl" and options.items() <= source.options.items()
    path = Path("configs/a/data.jsonl").absolute()
    assert source.options["path"] == str(path) and found.warnings == ()
    with pytest.raises(ConfigError, match=r"must name the column.*'my text', 'right'"):
        rlax_plugin.train(data=rows)
    rows = [{"question": "0+1"}, {"question": "1+1", "answer": 2}]
    with pytest.raises(ConfigError, match="line 2, has a reference in 'answer', a column that"):
        rlax_plugin.train(data=rows, rewards=["exact_match"])


def test_options_of_the_data_are_kept_beside_those_of_a_config(tmp_path: Path) -> None:
    Path("bytes.yml").write_text(
        f"base_config: {TESTING}\n"
        "rlax: {prompt_source: {name: jsonl, path: a, tokenizer: bytes, question: q}}\n"
    )
    rows = [{"q": f"{number}", "answer": number, "level": 1} for number in range(12)]
    config = {"rlax.prompt_source.metadata": ["level"], "rlax.prompt_source.chat": False}
    run = rlax_plugin.train(
        model="bytes.yml", data=rows, config=config, rewards=["numeric"], name="a"
    )
    assert run.config is not None
    found = resolve(run.config)
    options = found.section.prompt_source.options
    assert (options["metadata"], options["chat"], options["question"]) == (["level"], False, "q")
    path = Path("configs/a/data.jsonl").absolute()
    assert options["path"] == str(path) and found.warnings == ()


def test_run_of_a_config_that_names_the_same_data_in_another_way_continues() -> None:
    Path("rows.jsonl").touch()
    source = {"rlax.prompt_source": {"name": "jsonl", "path": "rows.jsonl"}}
    run = rlax_plugin.train(model=TESTING, name="a", config=source)
    assert run.config is not None and resolve(run.config).warnings == ()
    text = run.config.read_text()
    assert "path: ../../rows.jsonl" in text
    # As it was written when paths were relative to the working directory.
    run.config.write_text(text.replace("../../rows.jsonl", "rows.jsonl"))
    digest = hashlib.sha256(run.config.read_bytes()).hexdigest()
    Path("configs/a/written.json").write_text(json.dumps({"a.yml": digest}))
    Path("runs/a/checkpoints/1").mkdir(parents=True)
    rlax_plugin.train(model=TESTING, name="a", config=source)
    assert run.config.read_text() == text
    assert not Path("configs/a/new-a.yml").exists()


def test_a_list_of_files_that_is_damaged_is_one_error() -> None:
    Path("configs/a").mkdir(parents=True)
    Path("configs/a/written.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"written.json cannot be read: is no list of files"):
        rlax_plugin.train(model=TESTING, name="a")


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        ({"model": "no-such-model"}, "model", "no such model of MaxText"),
        ({"model": "no.yml"}, "model|config", "cannot be read"),
        ({"data": "no.txt", "model": TESTING}, "data", "must end in one of"),
        (
            {"rewards": ["even"], "config": {"rlax.rewards": []}},
            r"config\['rlax.rewards'\]",
            "toge",
        ),
        ({"config": [1]}, "config", "must be a dict"),
        ({"config": {"a b": 1}}, "config", "must be the name of a key"),
        ({"config": {"rlax.seed": object()}}, r"config\['rlax.seed'\]", "class object"),
        ({"config": {"rlax": {}, "rlax.seed": 1}}, r"config\['rlax.seed'\]", "contains it"),
        ({"config": {"steps": 3}, "steps": 4}, r"config\['steps'\]", "together with steps"),
        ({"config": {"run_name": "a"}}, r"config\['run_name'\]", "must be given as name"),
        ({"config": {"rlax.rollouts.group_size": 0}}, r"config\['rlax.rollouts.group_size'\]", "1"),
        (
            {"data": "a.jsonl", "config": {"rlax.prompt_source": {"name": "arithmetic"}}},
            r"config\['rlax.prompt_source.name'\]",
            "together with data",
        ),
        ({"model": TESTING, "steps": True}, "steps", "must be a whole number"),
        (
            {"rewards": ["even"], "config": {"rlax": {"rewards": []}}},
            r"config\['rlax.rewards'\]",
            "together",
        ),
        (
            {"preset": "grpo", "config": {"rlax": {"objective": {"preset": "dapo"}}}},
            r"config\['rlax.objective.preset'\]",
            "together with preset",
        ),
        ({"model": TESTING, "preset": "grpo", "config": {"rlax": 3}}, "rlax", "must be a mapping"),
        ({"rewards": [{"name": "even", "weight": np.float64(0.5)}]}, r"rewards\[0\]", "JSON keeps"),
        ({"rewards": ["no.py:correct"]}, r"rewards\[0\]", "'no.py:correct': needs no"),
        (
            {"model": TESTING, "config": {"base_output_directory": ""}},
            r"config\['base_output_directory'\]",
            "must be a path",
        ),
        ({"name": "\ud800"}, "name", "must not contain control characters"),
        ({"name": "a/b"}, "name", "the name of one directory"),
        ({"folder": 3}, "folder", "must be a name or a path"),
    ],
)
def test_a_bad_argument_is_one_error_and_leaves_nothing(
    given: dict[str, Any], key: str, reason: str, started: list[Path]
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        rlax_plugin.train(**given)
    assert re.fullmatch(key, caught.value.key)
    assert started == [] and list(Path().iterdir()) in ([], [Path("configs")])
    assert not Path("configs").exists() or list(Path("configs").iterdir()) == []
