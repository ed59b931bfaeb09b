"""Training prompts that are in an evaluation set: what is found, and what is not."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from command_line import rlax
from data_sets import write_lines
from documents import ROOT
from small_tokenizers import CHATML, byte_level

from rlax_plugin.data.curation.contaminated import contaminated_ids
from rlax_plugin.data.curation.contamination import KINDS, Sets, words_of

TRAINS = (
    "Two trains leave the station at noon, one at 40 km/h and the other at 60 km/h; when are "
    "they 250 km apart?"
)
SHORT = "A farmer has 17 sheep and all but 9 run away."  # 11 words


def kinds(texts: list[str], problems: list[str], words: int = 13) -> list[tuple[int, str]]:
    sets = Sets(words)
    sets.add("test", ((f"e{i}", text) for i, text in enumerate(problems)))
    return [(match.prompt, KINDS[match.kind]) for match in sets.look_up(0, texts)]


@pytest.mark.parametrize(
    "copy",
    [
        TRAINS.upper(),
        TRAINS.replace(" ", "\n\t "),
        f"\u201c{TRAINS}\u201d",
        TRAINS.replace(",", "").replace(";", " \u2014"),
        TRAINS.replace("station", "sta\u200btion\u2060"),  # seen as nothing
        TRAINS.replace(
            "station", "\U0001d42c\U0001d42d\U0001d41a\U0001d42d\U0001d422\U0001d428\U0001d427"
        ),
    ],
)
def test_a_copy_in_other_characters_has_the_same_words(copy: str) -> None:
    assert kinds([copy], [TRAINS]) == [(0, "same words")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2 + 3", "2 - 3"),
        ("6/3", "63"),
        ("What is 12?", "What is 1 2?"),
        ("...", "?!"),  # no words at all
        ("\u4e00\u4e8c", "\u4e8c\u4e00"),
    ],
)
def test_another_problem_is_another_problem(text: str, problem: str) -> None:
    assert kinds([text], [problem]) == []


def test_words_of_many_scripts() -> None:
    assert words_of("x\u00b2 + y = 3,5!") == ["x", "2", "+", "y", "=", "3,5"]
    assert words_of("\u4eca\u65e5\u306f") == ["\u4eca", "\u65e5", "\u306f"]
    assert words_of("Stra\u00dfe \u00c9t\u00e9") == words_of("STRASSE E\u0301TE\u0301")


def test_a_stretch_of_thirteen_words_is_found_and_one_of_twelve_is_not() -> None:
    words = words_of(TRAINS)
    assert len(words) > 20
    inside = "A riddle: " + " ".join(words[3:16]) + " and so on"
    assert kinds([inside], [TRAINS]) == [(0, "shared words")]
    assert kinds(["A riddle: " + " ".join(words[3:15])], [TRAINS]) == []
    assert kinds([" ".join(words[3:15])], [TRAINS], words=12) == [(0, "shared words")]
    # No stretch reaches from one text into the next.
    assert kinds([" ".join(words[:12]), " ".join(words[12:24])], [TRAINS]) == []


def test_a_short_problem_is_looked_for_as_a_whole() -> None:
    assert kinds([f"Think first. {SHORT} How many are left?"], [SHORT]) == [(0, "shared words")]
    assert kinds(["Think: a farmer has 17 sheep and all but 9 run."], [SHORT]) == []
    assert kinds(["So: what is 2 + 3? Answer."], ["What is 2 + 3?"]) == []  # too short for that
    assert kinds(["what is 2+3"], ["What is 2 + 3?"]) == [(0, "same words")]


def test_a_template_of_a_set_is_no_overlap() -> None:
    frame = "Answer the following question and put the final number into two angle brackets: {}"
    problems = [frame.format(f"{n} plus {n * n}") for n in range(40)]
    sets = Sets()
    sets.add("test", ((str(i), text) for i, text in enumerate(problems)))
    mine = [frame.format(f"{n} minus 7") for n in range(50)] + [problems[5]]
    assert [(m.prompt, KINDS[m.kind]) for m in sets.look_up(0, mine)] == [(50, "same text")]
    assert sets.common >= 40
    # What is a problem's own is found behind its template as well.
    problems[7] = frame.format(TRAINS)
    own = Sets()
    own.add("test", ((str(i), text) for i, text in enumerate(problems)))
    (match,) = own.look_up(0, [*mine[:50], f"Please think: {TRAINS}"])
    assert (match.prompt, match.problem, KINDS[match.kind]) == (50, 7, "shared words")


def test_each_set_counts_a_prompt_once_as_the_surest() -> None:
    sets = Sets()
    sets.add("a", [("1", TRAINS), ("2", TRAINS.upper())])
    sets.add("b", [("3", f"{TRAINS} {SHORT}"), ("4", "Something else.")])
    found = [
        (sets.names[sets.problems[m.problem].held_out], KINDS[m.kind])
        for m in sets.look_up(0, [TRAINS])
    ]
    assert found == [("a", "same text"), ("b", "shared words")]


def test_hostile_texts_take_linear_time() -> None:
    """A quadratic search takes hours, and the test ends before."""
    sets = Sets()
    sets.add("test", [("1", TRAINS), ("2", "-" * 1000), ("3", "\ud800 lone")])
    hostile = ["- " * 300_000, "-" * 300_000, "a" * 500_000, "\u0301" * 300_000, "1," * 200_000]
    hostile += ["\ud800" * 100_000, f"{TRAINS} " * 3000, "\ufdfa" * 20_000, ""]
    found = list(sets.look_up(0, hostile))
    assert [(m.prompt, KINDS[m.kind]) for m in found] == [(6, "shared words")]


def test_the_command_reports_writes_and_has_them_removed(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    byte_level(tmp_path / "model", template=CHATML)
    rows = [{"question": f"How many is {n} and {n}?", "answer": str(2 * n)} for n in range(20)]
    evil = "\x1b]0;owned\x07 [red]Two[/red] \u202e"
    write_lines(Path("train.jsonl"), [*rows, {"question": TRAINS + evil, "answer": "2.5"}])
    problems = [{"question": f"{evil} {TRAINS}", "answer": "2.5"}]
    problems += [{"question": "how many is 3 AND 3", "answer": "6"}]
    write_lines(Path("test.jsonl"), problems)
    config = yaml.safe_load((ROOT / "tests/configs/testing.yml").read_text())
    config["rlax"] |= {
        "prompt_source": {"name": "jsonl", "path": "train.jsonl"},
        "evaluation": {
            "split": "train",
            "problems": 3,
            "sets": {"riddles": {"prompt_source": {"name": "jsonl", "path": "test.jsonl"},
                                 "split": "train", "problems": 9}},
        },
    }  # fmt: skip
    config["rlax"]["rollouts"]["max_prompt_tokens"] = 2000
    config |= {"tokenizer_path": "model", "tokenizer_type": "huggingface"}
    Path("run.yml").write_text(yaml.safe_dump(config))
    done = rlax("prompts", "run.yml", "--contamination", "--out", "found.parquet")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output and "\u202e" not in done.output
    assert "5 of 21 training prompts are in an evaluation set" in done.output
    rows = pq.read_table("found.parquet").to_pylist()
    of = [(row["set"], row["kind"]) for row in rows]
    assert of.count(("train", "same id")) == 3  # the evaluation is asked of training itself
    assert ("riddles", "same words") in of and ("riddles", "shared words") in of
    as_json = json.loads(rlax("prompts", "run.yml", "--contamination", "--json").stdout)
    assert [one["touched"] for one in as_json["sets"]] == [3, 2]
    kept = contaminated_ids("found.parquet").to_pylist()
    assert len(kept) == 5 and set(kept) == {row["id"] for row in rows}
    again = rlax("prompts", "run.yml", "--contamination", "--out", "found.parquet")
    assert again.exit_code == 2 and "--out = 'found.parquet': exists already" in again.output
    for option, value in (("--out", "x.parquet"), ("--words", "5")):
        wrong = rlax("prompts", "run.yml", option, value)
        assert wrong.exit_code == 2 and f"{option} = " in wrong.output
        assert "is an option of --contamination only" in wrong.output
