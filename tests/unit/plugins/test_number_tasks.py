"""Number problems: right answers, nothing held out is shown, and what a model reads."""

import itertools
from pathlib import Path

import pytest
from rlax_arithmetic import ExactAnswer
from rlax_number_tasks import NumberTasks, NumberTasksConfig
from rlax_number_tasks.problems import SPLITS, Problem, Task, examples, problems
from small_tokenizers import byte_level

from rlax_plugin.api import Tokenizer


@pytest.mark.parametrize(("task", "answer"), [("largest", max), ("sum", sum)])
def test_no_numbers_of_a_held_out_problem_are_trained_on_or_shown(task: Task, answer) -> None:
    found = {split: problems(task, split, 300) for split in SPLITS}
    sets = {split: {tuple(sorted(p.numbers)) for p in found[split]} for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not sets[one] & sets[other]
    assert all(p.answer == answer(p.numbers) for p in itertools.chain(*found.values()))
    held_out = sets["test"] | sets["validation"]
    for asked in [*found["test"][:40], *found["train"][:40]]:
        shown = examples(task, asked, 3)
        assert len({p.numbers for p in shown}) == 3
        assert all(p.answer == answer(p.numbers) for p in shown)
        mine = tuple(sorted(asked.numbers))
        assert not {tuple(sorted(p.numbers)) for p in shown} & (held_out | {mine})
        assert shown == examples(task, asked, 3)


def test_all_sums_of_three_digits_are_in_one_split_each() -> None:
    found = [p.numbers for split in SPLITS for p in problems("sum", split, 2000)]
    assert sorted(found) == list(itertools.product(range(10), repeat=3))


def source(directory: Path, **options) -> NumberTasks:
    byte_level(directory)
    tokenizer = Tokenizer.load(directory, "tokenizer_path")
    return NumberTasks(NumberTasksConfig(**options), tokenizer)


def test_sums_are_asked_as_sums(tmp_path: Path) -> None:
    prompt = source(tmp_path, task="sum", shots=1).prompts("train")[0]
    (asked,) = problems("sum", "train", 1)
    (shown,) = examples("sum", asked, 1)
    lines = [" + ".join(map(str, one.numbers)) for one in (shown, asked)]
    assert prompt.text == f"{lines[0]} = {shown.answer}\n{lines[1]} ="
    assert prompt.reference == str(sum(asked.numbers))


def test_what_a_model_reads_behind_examples_and_where_its_answer_ends(tmp_path: Path) -> None:
    made = source(tmp_path, task="largest", shots=1)
    prompt = made.prompts("train")[0]
    asked = problems("largest", "train", 1)[0]
    shown = examples("largest", asked, 1)[0]

    def numbers(problem: Problem) -> str:
        return ", ".join(str(n) for n in problem.numbers)

    assert prompt.text == (
        f"Numbers: {numbers(shown)}\nLargest: {max(shown.numbers)}\n\n"
        f"Numbers: {numbers(asked)}\nLargest:"
    )
    assert made.decode(prompt.tokens) == prompt.text
    assert made.stop_strings == ("\n",)
    answer = made.decode(made.answer_tokens(prompt))
    assert answer == f" {max(asked.numbers)}\n"
    assert ExactAnswer()(prompt, answer) == 1.0
    assert ExactAnswer()(prompt, f" {min(asked.numbers)}") == 0.0


def test_a_chat_shows_solved_problems_as_earlier_answers(tmp_path: Path) -> None:
    made = source(tmp_path, task="sum", form="chat", shots=2, system="Be brief.")
    prompt = made.prompts("test")[0]
    messages = prompt.metadata["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2 + ["user"]
    shown = examples("sum", problems("sum", "test", 1)[0], 2)
    assert [m["content"] for m in messages[1::2]] == [str(sum(p.numbers)) for p in shown]
    assert made.stop_strings == ()
    assert made.answer_tokens(prompt)[-1] in made.stop_ids
    said = made.tokenizer.render([{"role": "system", "content": "Be brief."}, *messages])
    assert prompt.tokens.tolist() == said
