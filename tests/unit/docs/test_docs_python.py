"""The examples of docs/python.md and docs/from_trl.md are executed, and the tables are complete."""

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from documents import fences, read, sections
from nbclient import NotebookClient

import rlax_plugin
from rlax_plugin.config.loading import resolve
from rlax_plugin.tools.scripting import training

PAGE = read("python.md")
SCRIPT, *CELLS = fences(PAGE, "python")
MOVED = fences(read("from_trl.md"), "diff")[0].splitlines()  # a script of TRL, which was moved
OF_TRL = "\n".join(line[1:] for line in MOVED if not line.startswith("+"))
OURS = "\n".join(line[1:] for line in MOVED if not line.startswith("-"))


def test_the_script_writes_the_config_that_it_implies(tmp_path, monkeypatch) -> None:
    """Executed up to the line that waits, and nothing is started."""
    names = executed(SCRIPT[: SCRIPT.index("print(run.wait())")], tmp_path, monkeypatch)
    folder = Path("configs/run-1")
    found = resolve(folder / "run-1.yml")
    assert found.section.rewards[0].function == "rewards.py:correct"
    assert found.section.prompt_source.options["path"] == str(folder.absolute() / "data.jsonl")
    assert (found.maxtext["steps"], found.section.rollouts.max_new_tokens) == (100, 8)
    rows = (folder / "data.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in rows] == names["questions"] and len(rows) == 100
    assert "\ndef correct(completion, reference):\n" in (folder / "rewards.py").read_text()
    listed = set(re.findall(r"^\| `([\w.-]+)`", sections(PAGE, 2)["A script"], re.MULTILINE))
    there = {path.name for path in folder.iterdir()}
    assert there == (listed | {"rewards.py", "data.jsonl"}) - {"train.log"}


def executed(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Executes a script, checks that it would start ``run-1``, and returns its names."""
    started: list[tuple[Path, ...]] = []
    monkeypatch.setattr(training, "Started", lambda *given: started.append(given))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "script.py"
    path.write_text(script)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(script, str(path), "exec"), names)
    folder = Path("configs/run-1")
    assert started == [(folder / "run-1.yml", folder / "train.log")]
    return names


def test_the_script_of_trl_keeps_its_data_and_its_rewards(tmp_path, monkeypatch) -> None:
    kept = OF_TRL[: OF_TRL.index("args = GRPOConfig")].splitlines()
    assert [line for line in kept if line not in OURS] == [
        "from trl import GRPOConfig, GRPOTrainer"
    ]
    call = ast.parse(OF_TRL).body[-3]
    assert isinstance(call, ast.Assign) and isinstance(call.value, ast.Call)
    settings = {one.arg: ast.literal_eval(one.value) for one in call.value.keywords}
    names = executed(OURS[: OURS.index("run.wait()")], tmp_path, monkeypatch)
    found = resolve(Path("configs/run-1/run-1.yml"))
    rollouts, rewards = found.section.rollouts, found.section.rewards
    assert settings == {
        "output_dir": "out",  # TRL's; ours is "runs", because the script does not say
        "max_steps": found.maxtext["steps"],
        "learning_rate": found.maxtext["learning_rate"],
        "num_generations": rollouts.group_size,
        "max_completion_length": rollouts.max_new_tokens,
        "reward_weights": [one.weight for one in rewards],
    }
    assert found.section.objective.preset == "trl/grpo"
    assert [one.function for one in rewards] == ["rewards.py:correct", "rewards.py:digits"]
    texts = ["6", " 8 ", "x"]
    assert names["correct"](completions=texts, answer=["6", "8", "9"]) == [1.0, 1.0, 0.0]


def test_the_tables_have_all_arguments_and_methods() -> None:
    table = sections(PAGE, 2)["The arguments"]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in code(row)}
    assert named == set(inspect.signature(rlax_plugin.train).parameters)
    rows = re.findall(r"^\| (`.*?) \|", sections(PAGE, 2)["The handle"], re.M)
    for call in [one for row in rows for one in code(row)]:
        name, _, arguments = call.rstrip(")").partition("(")
        if "(" in call:
            signature = inspect.signature(getattr(rlax_plugin.Run, name))
            given = re.findall(r"(?:^|, )(\w+)", arguments)
            assert given == [one for one in signature.parameters if one != "self"]
            for one, default in re.findall(r"(\w+)=([^,]*)", arguments):
                assert repr(signature.parameters[one].default) in (
                    default.replace('"', "'"),
                    f"{default}.0",
                )
    known = {name for row in rows for one in code(row) for name in [one.partition("(")[0]]}
    own = {name for name in vars(rlax_plugin.Run) if not name.startswith("_")}
    assert known == own | {"directory", "config"}


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page_works_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is a cell, with few steps and a short warm start of a real model."""
    few = (
        '"rlax.trainer.warm_start.steps": 4, "rlax.curation.filters": [], '
        '"rlax.rollouts.groups_per_step": 4, "rlax.launcher.workers": 1, '
        '"rlax.evaluation.problems": 4'
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    rows = [{"question": f"{a} + 1 = ", "answer": a + 1} for a in range(60)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cells = [
        one.replace("steps=100", "steps=2")
        .replace("config={", f"config={{{few}, ")
        .replace('name="sums"', f'name="sums", config={{{few}}}')
        for one in (SCRIPT, *CELLS, OURS)
    ]
    assert sum(few in one for one in cells) == 3
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    limits = {"startup_timeout": 300, "timeout": 600}
    NotebookClient(notebook, **limits, kernel_name="python3", resources=resources).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    printed = "".join(one.text for one in outputs[0] if one.get("name") == "stdout")
    assert printed.splitlines()[0] == "complete"
    assert printed.splitlines()[-1].endswith("runs/run-1/report.html")
    assert outputs[1][-1].data["text/plain"] == "'complete'"
    assert "'completion': " in outputs[2][0].data["text/plain"]
    assert any("image/png" in one.get("data", {}) for one in outputs[3])
    assert outputs[4][0].data["text/plain"] == "'complete'"
    assert outputs[-1][-1].data["text/plain"] == "'complete'"
