"""docs/environments.md takes an author from nothing to an environment that trains."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from documents import fences, read, sections
from rlax_http.program import ProgramConfig
from test_docs_plugins import shell

from rlax_plugin.api import Outcome, Session, sandbox_layers
from rlax_plugin.run.state.read_samples import rows_of
from rlax_plugin.testing.contracts.environment import ScriptedSession

PAGE = sections(read("environments.md"), 2)
EXAMPLE = PAGE["Write an environment"]
PROGRAM = PAGE["A program in the sandbox"]
CONFIG = yaml.safe_load(fences(EXAMPLE, "yaml")[0])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder in which the page's commands were run, and what the last ones printed."""
    folder = tmp_path_factory.mktemp("environments")
    create, train = fences(EXAMPLE, "sh")
    shell(folder, create)
    (path,) = re.findall(r"Replace `([\w/.]+)` by this file", EXAMPLE)
    assert (folder / path).exists()
    (folder / path).write_text(fences(EXAMPLE, "python")[0])
    (folder / "tries.yml").write_text(fences(EXAMPLE, "yaml")[0])
    yield folder, shell(folder, train)


def rows(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("runs/tries/samples/*/*.parquet"))
    tables = [rows_of(file.read_bytes(), f"samples/{file.name}") for file in files]
    return [row for table in tables for row in table.to_pylist()]


def test_the_example_is_checked_and_trains(done: tuple[Path, str]) -> None:
    folder, told = done
    assert "environment" in told and "second_try" in told and "the same answers" in told
    assert (folder / "runs/tries/report.html").exists()
    lines = (folder / "runs/tries/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert len(steps) == CONFIG["steps"]
    right = [step["reward_metric/right"] for step in steps]
    assert np.mean(right[-3:]) > np.mean(right[:3]) + 0.2
    # As answers become right at once, episodes become shorter.
    turns = [step["episode/turns_mean"] for step in steps]
    assert np.mean(turns[-3:]) < np.mean(turns[:3]) <= 3


def test_two_environments_train_as_printed(tmp_path: Path) -> None:
    section = PAGE["Several environments in one run"]
    (tmp_path / "two.yml").write_text(fences(section, "yaml")[0])
    told = shell(tmp_path, fences(section, "sh")[0])
    assert "clean: every group is accounted for" in told
    lines = (tmp_path / "runs/two/metrics.jsonl").read_text().splitlines()
    for step in map(json.loads, lines):
        assert (step["environment_plain/groups"], step["environment_tools/groups"]) == (6, 2)
        assert step["environment_tools/turns_mean"] == 3
    result = json.loads((tmp_path / "runs/two/summary.json").read_text())["evaluation"]["after"]
    assert {"plain", "tools"} <= result.keys()


def test_its_turns_are_paid_as_the_page_says(done: tuple[Path, str]) -> None:
    found = rows(done[0])
    assert {len(row["sampled_lengths"] or (0,)) for row in found} == {1, 2, 3}
    for row in found:
        answers = (row["texts"] or [row["completion"]])[::2]
        rewards = [1.0 if text[:1] in tuple("02468") else -0.1 for text in answers]
        assert row["reward"] == pytest.approx(sum(rewards))
        ends = np.cumsum(row["sampled_lengths"] or [len(row["tokens"])]) - 1
        assert np.array(row["token_rewards"])[ends].tolist() == rewards


# In place of the package ``openai``, which is not installed here.
OPENAI = """
import json, os, types, urllib.error, urllib.request
class BadRequestError(Exception): pass
class OpenAI:
    def __init__(self):
        self.completions = types.SimpleNamespace(create=self.create)
    def create(self, **body):
        url = os.environ["OPENAI_BASE_URL"] + "/completions"
        headers = {"Content-Type": "application/json"}
        headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            reply = urllib.request.urlopen(request, timeout=60).read()
        except urllib.error.HTTPError as refused:
            error = BadRequestError(refused.code)
            error.code = json.load(refused)["error"]["code"]
            raise error from None
        return json.loads(reply, object_hook=lambda one: types.SimpleNamespace(**one))
"""


@pytest.mark.skipif(bool(sandbox_layers().missing), reason="layers are missing")
def test_the_program_in_the_sandbox_trains(tmp_path: Path) -> None:
    agent, *_ = fences(PROGRAM, "python")
    (tmp_path / "agent.py").write_text(agent)
    (tmp_path / "openai.py").write_text(OPENAI)
    config = fences(PROGRAM, "yaml")[0].replace("files: [agent.py]", "files: [agent.py, openai.py]")
    (tmp_path / "agent.yml").write_text(config)
    shell(tmp_path, fences(PROGRAM, "sh")[0])
    lines = (tmp_path / "runs/agent/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert len(steps) == 3 and max(step["reward_metric/tries"] for step in steps) > 1
    assert sum(step.get("episode_ended/server_failed", 0) for step in steps) == 0


def test_the_grader_of_the_page_and_its_options(tmp_path: Path) -> None:
    options = yaml.safe_load(fences(PROGRAM, "yaml")[1])["verify"]
    assert ProgramConfig(command=["x"], verify=options).verify.carry == ["solution.py"]
    for name, text in (("grade.py", fences(PROGRAM, "python")[1]), ("cases.json", "[[2, 4]]")):
        (tmp_path / name).write_text(text)
    (tmp_path / "solution.py").write_text("def double(x): return 2 * x")
    assert json.loads(shell(tmp_path, "python grade.py")) == {"reward": 1.0}


def test_every_member_of_a_session_and_an_outcome_is_explained() -> None:
    members = {*Session.__annotations__, "answer", "sample", "begin"}
    assert members == {"answer", "turns_left", "tokens_left", "sample", "begin"}
    assert members <= set(dir(ScriptedSession)) | {"answer"}
    table = "\n".join(line for line in EXAMPLE.splitlines() if line.startswith("| `"))
    assert [name for name in members if not re.search(rf"`[^`]*\b{name}\b", table)] == []
    (fields,) = (line for line in EXAMPLE.splitlines() if line.startswith("`Outcome` has"))
    assert re.findall(r"`(\w+)` (?:is|has)", fields)[1:] == list(Outcome.__slots__)
