"""``rlax prompts``: what it shows of prompts of every sort, and that none of it does harm."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import rlax
from data_sets import write_lines
from small_tokenizers import CHATML, byte_level

ROOT = Path(__file__).parents[4]
HOSTILE = "\x1b]0;owned\x07\x1b[2Jred \u202e evil \r over [bold]x[/bold]"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, rows, and a cache: what several tests show is prepared once."""
    folder = tmp_path_factory.mktemp("prompts")
    byte_level(folder / "model", template=CHATML)
    rows: list[Any] = [
        {"question": f"What is {n}?", "answer": n, "kind": "ab"[n % 2]} for n in range(40)
    ]
    rows[3] = rows[1]
    rows[5]["question"] = "x" * 200
    write_lines(folder / "rows.jsonl", [*rows, "{"])
    return folder


@pytest.fixture(autouse=True)
def directory(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(files / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(files)
    return files


def prompts(*options: str, **source: Any) -> Any:
    chosen = {
        "name": "jsonl",
        "path": "rows.jsonl",
        "broken": "skip",
        "domain": "kind",
        "weights": {"a": 3, "b": 1},
        "held_out": {"test": 0.2},
        "max_tokens": 60,
    } | source
    return rlax(
        "prompts",
        str(ROOT / "tests/configs/testing.yml"),
        "tokenizer_path=model",
        "tokenizer_type=huggingface",
        "rlax.rollouts.max_prompt_tokens=300",
        f"rlax.prompt_source={json.dumps(chosen)}",
        *options,
    )


def test_everything_is_in_the_json() -> None:
    done = prompts("--json", "--count", "2", system="Be brief.")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    train, test = found["splits"]["train"], found["splits"]["test"]
    assert train["prompts"] + test["prompts"] == 38 and test["prompts"] > 0
    assert sum(one["count"] for s in (train, test) for one in s["left_out"]) == 3
    reasons = {one["reason"]: one for s in (train, test) for one in s["left_out"]}
    assert reasons.keys() == {"duplicate", "too long", "broken"}
    assert reasons["broken"]["examples"][0]["place"].endswith("rows.jsonl, line 41,")
    assert reasons["too long"]["examples"][0]["what"] == "its question has more than 60 tokens"
    assert {one["name"]: one["weight"] for one in train["domains"]} == {"a": 0.75, "b": 0.25}
    assert train["tokens"]["shortest"] <= train["tokens"]["median"] <= train["tokens"]["longest"]
    assert train["tokens"]["longest"] <= 60 and train["tokens"]["max_prompt_tokens"] == 300
    first = found["prompts"][0]
    assert [one["split"] for one in found["prompts"]] == ["train", "train", "test", "test"]
    assert first["rendered"] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 0?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert first["reference"] == "0" and first["metadata"] == {"kind": "a"}
    assert first["place"].endswith("rows.jsonl, line 1") and first["tokens"] > 30


def test_what_a_person_reads() -> None:
    said = prompts("--split", "train", "--count", "1").stdout
    assert said.startswith("train: ") and " prompts of jsonl\n" in said
    assert "\ntest" not in said
    assert "  left out, duplicate: 1\n" in prompts("--count", "0").stdout
    assert "  left out, broken: 1\n" in said and "rows.jsonl, line 41, is no JSON: " in said
    assert "  | <|im_start|>user\n  | What is 0?<|im_end|>\n" in said
    assert "  reference: 0\n  metadata kind: 'a'\n" in said
    assert "a       " in said and "0.750" in said
    assert prompts("--split", "train", "--count", "0").stdout.count("| ") == 0


def test_one_prompt_by_its_id() -> None:
    found = json.loads(prompts("--json", "--count", "9").stdout)["prompts"]
    one = found[4]
    again = json.loads(prompts("--json", "--id", one["id"]).stdout)["prompts"]
    assert again == [one]
    other = prompts("--id", "0" * 32)
    assert other.exit_code == 2
    assert "--id = '00000000000000000000000000000000': is the id of no prompt of train, test" in (
        other.output
    )


def test_a_wrong_split_and_one_without_prompts() -> None:
    wrong = prompts("--split", "tset")
    assert wrong.exit_code == 2
    assert "--split = 'tset': no such split; did you mean 'test'?" in wrong.output
    empty = prompts(held_out={"test": 1e-9})
    assert empty.exit_code == 0
    assert "split 'test' has no prompts: raise its share in held_out" in empty.stdout
    assert prompts("--split", "test", held_out={"test": 1e-9}).exit_code == 2


def test_hostile_text_does_no_harm_on_a_terminal(directory: Path) -> None:
    row = {"question": f"q {HOSTILE}", "answer": HOSTILE, "kind": HOSTILE, HOSTILE: [HOSTILE]}
    write_lines(directory / "bad.jsonl", [row, {"question": 5, "kind": "x"}, f"{HOSTILE}"])
    done = prompts(path="bad.jsonl", weights={}, held_out={}, max_tokens=None)
    assert done.exit_code == 0, done.output
    for sign in ("\x1b", "\x07", "\r", "\u202e"):
        assert sign not in done.output
    assert "\\x1b]0;owned\\x07" in done.stdout and "[bold]x[/bold]" in done.stdout
    as_json = prompts("--json", path="bad.jsonl", weights={}, held_out={}).stdout
    assert as_json.isascii() and "\x1b" not in as_json


def test_sources_that_are_no_tables() -> None:
    done = rlax("prompts", str(ROOT / "configs/demo.yml"), "--split", "test", "--json")
    found = json.loads(done.stdout)
    assert found["splits"]["test"]["prompts"] == 1001 and found["splits"]["test"]["left_out"] == []
    assert found["prompts"][0]["rendered"].startswith("<bos>")
    (one,) = json.loads(
        rlax(
            "prompts", str(ROOT / "configs/demo.yml"), "--id", found["prompts"][1]["id"], "--json"
        ).stdout
    )["prompts"]
    assert one == found["prompts"][1]
