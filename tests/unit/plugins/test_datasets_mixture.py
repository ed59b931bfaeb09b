"""Sources ``mixture`` and ``reasoning_gym``, and which prompts of several domains come first."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from data_sets import jsonl, tables, tokenizer, write_lines
from rlax_datasets import Mixture, ReasoningGymConfig, ReasoningGymSource
from small_tokenizers import CHATML, byte_level

from rlax_plugin.api import BuildContext, ConfigError, PromptTable
from rlax_plugin.build import Registry
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.data.prompts.checking import first_of
from rlax_plugin.ports.manager import Manager


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, rows in {"a": 8, "b": 4, "c": 12}.items():
        lines = [{"question": f"{name}{n}", "answer": n, "kind": n % 2} for n in range(rows)]
        write_lines(tmp_path / f"{name}.jsonl", lines)
    monkeypatch.chdir(tmp_path)


def parts(directory: Path, **sources: Any) -> tuple[Registry, BuildContext, Choice]:
    """What a run builds a mixture from."""
    model = {"tokenizer_path": str(byte_level(directory / "model", template=CHATML))}
    maxtext = SimpleNamespace(maxtext=model | {"tokenizer_type": "huggingface"})
    section = RlaxSection.model_validate(
        {
            "prompt_source": {"name": "x"},
            "rewards": [{"name": "y"}],
            "rollouts": {"max_prompt_tokens": 100},
        }
    )
    registry = Registry(Manager(("rlax_datasets", "rlax_number_tasks")))
    context: Any = BuildContext(directory, 0, section, maxtext)  # pyright: ignore
    return registry, context, Choice.model_validate({"name": "mixture", "sources": sources})


def mixture(directory: Path, **sources: Any) -> Any:
    """A mixture as a run builds it."""
    registry, context, choice = parts(directory, **sources)
    return registry.part("prompt_source", choice, "rlax.prompt_source", context)


def here(found: Any) -> Any:
    """A mixture whose sources are prepared in this process, which takes no second one."""
    for source in found.sources.values():
        source.prepare = tables
    return found


def refusal(directory: Path, split: str = "train", **sources: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        mixture(directory, **sources).prompts(split)
    return str(raised.value)


def part(name: str, **options: Any) -> dict[str, Any]:
    return {"name": "jsonl", "path": f"{name}.jsonl", **options}


def test_each_source_is_a_domain_with_its_weight(tmp_path: Path) -> None:
    sources = {
        "a": part("a", weight=3, held_out={"test": 0.4}),
        "b": part("b", system="Be brief."),
        "c": part("c", domain="kind", weights={"0": 1, "1": 3}, held_out={"dev": 0.2}),
    }
    found = here(mixture(tmp_path, **sources))
    assert isinstance(found, Mixture) and found.splits == ("train", "test", "dev")
    table = found.prompts("train")
    names = ("a", "b", "c/0", "c/1")
    assert table.domains.names == names
    assert table.domains.weights.tolist() == pytest.approx([0.6, 0.2, 0.05, 0.15])
    assert {one.text[0] for one in table} == {"a", "b", "c"} and table is found.prompts("train")
    a_test, c_dev = found.prompts("test"), found.prompts("dev")
    assert {one.text[0] for one in a_test} == {"a"} and {one.text[0] for one in c_dev} == {"c"}
    assert len(table) + len(a_test) + len(c_dev) == 24
    (brief,) = [one for one in table if one.text == "b0"]
    assert "Be brief." in found.decode(brief.tokens)
    files = found.identity()["files"]
    assert sorted(files) == ["a/train", "b/train", "c/train"]
    assert files["b/train"][0]["size"] == (tmp_path / "b.jsonl").stat().st_size


def test_what_one_source_is_evaluated_with_is_not_trained_on_from_another(tmp_path: Path) -> None:
    tests = [{"question": f"{name}{n}", "answer": 0} for name, n in (("a", 1), ("c", 4), ("c", 5))]
    write_lines(tmp_path / "tests.jsonl", tests)
    splits = {"name": "jsonl", "splits": {"train": "b.jsonl", "test": "tests.jsonl"}}
    sources = {"a": part("a"), "c": part("c", domain="kind"), "b": splits}
    found = here(mixture(tmp_path, **sources))
    table, alone = found.prompts("train"), tables(jsonl(tmp_path / "a.jsonl"))["train"]
    assert [one.text for one in table[:8]] == [f"a{n}" for n in range(8) if n != 1] + ["c0"]
    assert [one.text for one in table[7:17]] == [f"c{n}" for n in range(12) if n not in (4, 5)]
    assert len(table) == len(table.lengths) == len(table.ids) == 7 + 10 + 4
    counts = {reason: one.count for reason, one in table.skipped.items()}
    assert counts == {"a: in another split": 1, "c: in another split": 2}
    assert table.skipped["c: in another split"].examples == [
        (f"{tmp_path}/c.jsonl, line {n},", "its question is in split test of b, too")
        for n in (5, 6)
    ]
    assert table.domains.names == ("a", "c/0", "c/1", "b")
    kinds = [one.metadata["kind"] for one in table[7:17]]
    assert table.domains.of_n[7:17].tolist() == [1 + kind for kind in kinds]
    assert table[9].tokens.tolist() == found.encode(table[9].text)
    other = sources | {"a": part("a", duplicates="keep")}
    keeps = here(mixture(tmp_path, **other)).prompts("train")
    assert [one.text for one in keeps[:8]] == [one.text for one in alone]
    assert keeps.digest != table.digest


def test_what_two_sources_train_on_stays_in_both(tmp_path: Path) -> None:
    found = here(mixture(tmp_path, a=part("a"), again=part("a")))
    assert [one.text for one in found.prompts("train")] == 2 * [f"a{n}" for n in range(8)]


def test_a_source_without_a_prompt_that_may_be_trained_on_is_an_error(tmp_path: Path) -> None:
    splits = {"train": "b.jsonl", "test": "a.jsonl"}
    found = here(mixture(tmp_path, a=part("a"), b={"name": "jsonl", "splits": splits}))
    with pytest.raises(ConfigError) as raised:
        found.prompts("train")
    assert str(raised.value).startswith(
        "rlax.prompt_source.sources = 'a': has no prompts left for training"
    )


def test_a_start_checks_what_the_sources_check(tmp_path: Path) -> None:
    sources = {"a": part("a"), "b": part("b", path="gone-*.jsonl")}
    registry, context, choice = parts(tmp_path, **sources)
    with pytest.raises(ConfigError) as raised:
        registry.check_part("prompt_source", choice, "rlax.prompt_source", context)
    assert str(raised.value).startswith(
        "rlax.prompt_source.sources.b.path = 'gone-*.jsonl': does not exist"
    )


def test_an_evaluation_asks_of_every_domain(tmp_path: Path) -> None:
    table = here(mixture(tmp_path, a=part("a", weight=2), c=part("c"))).prompts("train")
    assert [one.text for one in first_of(table, 6)] == ["a0", "c0", "a1", "a2", "c1", "a3"]
    everything = table.first(100)
    assert sorted(everything) == list(range(20)) and table.first(0) == []
    alone = tables(jsonl(tmp_path / "a.jsonl"))["train"]
    assert alone.first(3) == [0, 1, 2] and len(alone.first(9)) == 8


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            {"a": part("a"), "b": part("b", chat=False)},
            "rlax.prompt_source.sources.b.chat = False: must be the same as that of a: True",
        ),
        (
            {"a": part("a"), "b": part("b", stop_strings=["x"])},
            "rlax.prompt_source.sources.b.stop_strings = ('x',): must be the same as that of a: ()",
        ),
        (
            {"n": {"name": "number_tasks"}},
            "rlax.prompt_source.sources.n.name = 'number_tasks': must be a source over a data set",
        ),
        (
            {"a": part("a", pth="x")},
            "rlax.prompt_source.sources.a.pth = 'x': unknown key; did you mean 'path'?",
        ),
        ({"a/b": part("a")}, "rlax.prompt_source.sources = 'a/b': must be a name without dots"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(
    tmp_path: Path, sources: dict[str, Any], message: str
) -> None:
    assert refusal(tmp_path, **sources).startswith(message)


# reasoning_gym.


def gym(**options: Any) -> ReasoningGymSource:
    return ReasoningGymSource(
        ReasoningGymConfig.model_validate(options), tokenizer(), max_tokens=5000
    )


def test_entries_of_several_tasks_are_domains_and_carry_what_their_scorer_needs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import reasoning_gym
    tasks = {
        "countdown": {"weight": 3, "options": {"max_numbers": 4}},
        "knights_knaves": {},
        "graph_color": {},
    }
    table = tables(gym(tasks=tasks, size=20, seed=7))["train"]
    assert len(table) == 60 and isinstance(table, PromptTable) and table.domains is not None
    assert table.domains.names == tuple(tasks)
    assert table.domains.weights.tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert [one.metadata["task"] for one in table[:4]] == [*tasks, "countdown"]
    for name, task in tasks.items():
        entries = reasoning_gym.create_dataset(name, size=20, seed=7, **task.get("options", {}))
        for number, prompt in enumerate(p for p in table if p.metadata["task"] == name):
            entry = entries[number]
            assert prompt.text == entry["question"]
            assert prompt.reference == (entry["answer"] or "")
            assert prompt.metadata["metadata"] == json.loads(json.dumps(entry["metadata"]))
            assert prompt.metadata["metadata"]["source_dataset"] == name
    assert all("numbers" in p.metadata["metadata"] for p in table[::3])
    assert tables(gym(tasks=tasks, size=20, seed=8))["train"].digest != table.digest


def test_held_out_entries_are_of_all_tasks_and_templates_work() -> None:
    source = gym(
        tasks={"leg_counting": {}, "countdown": {}},
        size=60,
        held_out={"test": 0.3},
        question="{question}\nAnswer in <answer> tags.",
    )
    found = tables(source)
    first = [found["test"][index] for index in found["test"].first(6)]
    assert {one.metadata["task"] for one in first} == {"leg_counting", "countdown"}
    assert all(one.text == one.metadata["question"] + "\nAnswer in <answer> tags." for one in first)


def test_what_a_process_generates_does_not_depend_on_the_order_of_sets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some generators go through sets of texts, whose order changes from process to process."""
    digests = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / seed))
        digests.add(gym(tasks={"isomorphic_strings": {}}, size=30).prompts("train").digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": {"countdwn": {}}}, "tasks = 'countdwn': is no task of reasoning-gym: did you"),
        (
            {"tasks": {"countdown": {"options": {"min_numbers": -3}}}},
            "tasks.countdown.options = {'min_numbers': -3}: does not suit the task: min_numbers",
        ),
    ],
)
def test_wrong_tasks_and_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tables(gym(**options))
    assert str(raised.value).startswith(f"rlax.prompt_source.{message}")


@pytest.mark.parametrize("option", ["splits", "domain", "weights", "reference"])
def test_what_tasks_decide_cannot_be_given(option: str) -> None:
    value = {"splits": {"train": "x"}, "weights": {"x": 1}}.get(option, "x")
    with pytest.raises(ConfigError, match=f"^{option} = .*cannot be given here"):
        gym(tasks={"countdown": {}}, **{option: value})
