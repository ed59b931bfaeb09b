"""``rlax score``: real reward processes, groups, prompts by id, and files that are wrong."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from command_line import rlax
from documents import ROOT

CONFIG = str(ROOT / "tests" / "configs" / "testing.yml")
PLUGIN = """
from rlax_plugin.api import Extension, NoOptions, Score, hookimpl

class Best:
    def score_group(self, prompt, episodes):
        longest = max(len(one.text) for one in episodes)
        return [float(len(one.text) == longest) for one in episodes]

def level(prompt, completion):
    return Score(prompt.metadata["level"], metrics={"half": prompt.metadata["level"] / 2})

@hookimpl
def rlax_register_reward():
    return {
        "best": Extension(NoOptions, lambda config, context: Best()),
        "level": Extension(NoOptions, lambda config, context: level),
    }
"""


def own(folder: Path, patch: pytest.MonkeyPatch, name: str, code: str = PLUGIN) -> str:
    """The argument that loads a plug-in, here and in reward processes; each needs its own name."""
    (folder / f"{name}.py").write_text(code)
    patch.syspath_prepend(folder)
    patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return f"rlax.plugins=[{name}, rlax_plugin.testing]"


def written(folder: Path, *lines: object) -> str:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "c.jsonl").write_text(text)
    return str(folder / "c.jsonl")


def scored(file: str, *arguments: str, status: int = 0) -> dict[str, Any]:
    result = rlax("score", CONFIG, file, "--json", *arguments)
    assert result.exit_code == status, result.stderr
    return json.loads(result.stdout)


def test_parts_weights_metrics_and_errors(tmp_path, monkeypatch):
    level = "{name: level, label: grade, weight: 0.5}"
    rewards = f"rlax.rewards=[{level}, {{name: exact_match, weight: -1}}]"
    lines = [
        {"completion": "7", "answer": "7", "metadata": {"level": 3}},
        {"completion": "8\u202e", "reference": "7", "metadata": {"level": 1}},
        "",
        {"completion": "7", "reference": "7", "metadata": {}},
    ]
    plugins = own(tmp_path, monkeypatch, "own_parts_level")
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    found = scored(written(tmp_path, *lines), rewards, plugins, status=1)
    assert found["rewards"][0] == {"name": "grade", "weight": 0.5}
    one, two, failed = found["samples"]
    assert (one["line"], one["reward"], one["parts"]) == (1, 0.5, [3.0, 1.0])
    assert one["metrics"] == {"half": 1.5}
    assert (two["reward"], two["parts"]) == (0.5, [1.0, 0.0])
    assert failed["line"] == 4
    assert failed["error"].startswith("rlax.rewards.0 (grade): KeyError: 'level'")
    assert (found["scored"], found["errors"], found["mean"], found["passed"]) == (2, 1, 0.5, 2)
    table = rlax("score", CONFIG, str(tmp_path / "c.jsonl"), rewards, plugins).stdout
    assert "0.5 * grade" in table and "-1 * exact_match" in table and "\u202e" not in table
    assert "a reward failed on prompt line 4" in table
    assert "a reward failed on prompt line 4" in Path(found["log"]).read_text()
    good = scored(written(tmp_path, *lines[:2]), rewards, plugins)
    assert good["log"] is None and len(list(kept.iterdir())) == 2  # of the two that failed


def test_lines_with_one_prompt_are_a_group(tmp_path, monkeypatch):
    texts = [("p", "a"), ("q", "bb"), ("p", "cc"), ("q", "d")]
    lines = [{"completion": text, "prompt": prompt} for prompt, text in texts]
    found = scored(
        written(tmp_path, *lines),
        "rlax.rewards=[{name: best}]",
        own(tmp_path, monkeypatch, "own_parts_best"),
    )
    assert [one["reward"] for one in found["samples"]] == [0.0, 1.0, 1.0, 0.0]


def test_a_prompt_by_its_id_and_tokens(tmp_path):
    from rlax_plugin.build import registry_of
    from rlax_plugin.config.loading import load_section
    from rlax_plugin.ports.protocols import BuildContext

    section, _ = load_section(CONFIG, ())
    source = registry_of(section.plugins).part(
        "prompt_source", section.prompt_source, "x", BuildContext.outside_run(section)
    )
    prompt = source.prompts("test")[1]
    lines = [
        {"completion": prompt.reference, "id": prompt.id},
        {"completion": "12", "id": prompt.id, "tokens": [4] * 9},
    ]
    rewards = "rlax.rewards=[{name: exact_match}, {name: length, shape: linear, cost: 1, most: 99}]"
    first, second = scored(written(tmp_path, *lines), rewards)["samples"]
    assert first["id"] == prompt.id
    assert first["parts"] == [1.0, -len(source.encode(prompt.reference))]
    assert second["parts"] == [0.0, -9.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"completion": 5}', "c.jsonl:2.completion = 5: must be text"),
        ('{"completon": "x"}', "c.jsonl:2.completion: must be given"),
        ('{"completion": "x"', 'c.jsonl:2 = \'{"completion": "x"\': is not JSON'),
        ('{"completion": "x", "metadata": {"a": NaN}}', "NaN is not a number of JSON"),
        ('{"completion": "x", "id": "nobody"}', "c.jsonl:2: id = 'nobody': is not a prompt of"),
        ('{"completion": "x", "number": 1}', "c.jsonl:2: number = 1: is not a key of a completion"),
    ],
)
def test_a_wrong_line_is_one_error_with_its_place(tmp_path, line, said):
    result = rlax("score", CONFIG, written(tmp_path, {"completion": "y"}, line))
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_other_encodings_and_empty_files(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes('\ufeff{"completion": "ä", "reference": "ä"}'.encode())
    assert scored(str(path), "rlax.rewards=[{name: exact_match}]")["mean"] == 1.0
    for data, said in [
        ('{"completion": "ä"}'.encode("latin-1"), "c.jsonl:1: is not UTF-8"),
        ('{"completion": "a"}'.encode("utf-16"), "c.jsonl:1: is not UTF-8"),
        (b"\n \n", "has no completions"),
        (b"x" * (64 << 20) + b"x", "is longer than 64 MiB"),
    ]:
        path.write_bytes(data)
        result = rlax("score", CONFIG, str(path))
        assert result.exit_code == 2 and said in " ".join(result.stderr.split())
    result = rlax("score", CONFIG, str(tmp_path / "none.jsonl"))
    assert result.exit_code == 2 and "cannot be read: No such file" in result.stderr


def test_a_reward_that_cannot_start_shows_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the log is kept
    result = rlax(
        "score",
        CONFIG,
        written(tmp_path, {"completion": "y"}),
        "rlax.rewards=[{name: best}]",
        own(tmp_path, monkeypatch, "own_parts_broken", PLUGIN.replace("Best())", "1 / 0)")),
    )
    assert result.exit_code == 1 and "ZeroDivisionError" in result.stderr
    (cited,) = re.findall(r"see (\S+rewards\.log)", result.stderr)
    assert "ZeroDivisionError" in Path(cited).read_text()
