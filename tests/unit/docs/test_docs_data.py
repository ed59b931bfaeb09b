"""The commands and configs of docs/your_data.md work as they stand there."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from command_line import rlax
from data_sets import prepare_here, write_lines
from documents import ROOT, fences, read
from small_tokenizers import CHATML, byte_level

CONFIGS = {
    content["rlax"]["prompt_source"]["name"]: content
    for content in map(yaml.safe_load, reversed(fences(read("your_data.md"), "yaml")))
    if "prompt_source" in content.get("rlax", {})
}
COMMANDS = [
    shlex.split(line)[1:]
    for block in fences(read("your_data.md"), "sh")
    for line in block.splitlines()
    if line.startswith("rlax prompts")
]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    prepare_here(monkeypatch)
    byte_level(tmp_path / "model", template=CHATML)
    return tmp_path


def write_config(directory: Path, name: str) -> None:
    """The page's prompt source in a config whose other keys are those of the toy runs."""
    config = yaml.safe_load((ROOT / "tests/configs/testing.yml").read_text())
    config["rlax"] |= CONFIGS[name]["rlax"]
    config["rlax"]["rollouts"]["max_prompt_tokens"] = 2000
    config |= {"tokenizer_path": "model", "tokenizer_type": "huggingface"}
    (directory / "mine.yml").write_text(yaml.safe_dump(config))


def shown(*command: str) -> str:
    done = rlax(*command)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_file_of_questions_and_the_commands(directory: Path) -> None:
    rows = [json.loads(line) for line in fences(read("your_data.md"), "json")[1].splitlines()]
    more = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(300)]
    write_lines(directory / "questions.jsonl", [*rows, *more])
    write_config(directory, "jsonl")
    whole, test, as_json = (shown(*command) for command in COMMANDS)
    assert "What is 3 + 4?" in whole and "metadata level: 1" in whole
    assert whole.count("prompts of jsonl") == 3
    assert test.startswith("test: ") and test.count("reference: ") == 1
    splits = json.loads(as_json)["splits"]
    assert sum(one["prompts"] for one in splits.values()) == 302 and len(splits) == 3


def test_two_commands_from_a_file_to_a_config(directory: Path) -> None:
    page = read("your_data.md")
    rows = [json.loads(line) for line in fences(page, "json")[0].splitlines()]
    words = [f"{one}{other}" for one in "aeiou" for other in ("nk", "rst", "lt", "mble")]
    rows += [{"question": f"Spell backward: {one}", "answer": one[::-1]} for one in words]
    write_lines(directory / "questions.jsonl", rows)
    (directory / "rewards.py").write_text(fences(page, "python")[0])
    init, train = (shlex.split(line)[1:] for line in fences(page, "sh")[0].splitlines())
    said = shown(*init)
    assert "never on held-out ones" in said and "wrote mine.yml" in said
    assert train == ["train", "mine.yml"]
    explained = shown("check", "--fast", "mine.yml")
    assert "batch    512 rows of 32 tokens (prompt 24 + completion 8)" in explained
    whole = shown("prompts", "mine.yml", "--split", "train")
    assert "<|user|>Spell backward: bird<|assistant|>" in whole and "reference: drib" in whole


def test_the_mixture(directory: Path) -> None:
    for name in ("sums", "words"):
        rows = [{"question": f"{name} {n}?", "answer": n} for n in range(40)]
        write_lines(directory / f"{name}.jsonl", rows)
    write_config(directory, "mixture")
    found = json.loads(shown("prompts", "mine.yml", "--json"))
    domains = found["splits"]["train"]["domains"]
    assert [(one["name"], one["weight"]) for one in domains] == [("sums", 0.75), ("words", 0.25)]
    assert {one["name"] for one in found["splits"]["test"]["domains"]} == {"sums"}
    assert [one["text"].split()[0] for one in found["prompts"][:3]] == ["sums", "sums", "words"]
    assert "Answer with one word." in found["prompts"][2]["rendered"]
