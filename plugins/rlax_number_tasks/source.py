"""The prompt source ``number_tasks``: small problems about numbers, phrased for language models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from rlax_number_tasks.problems import Problem, Task, examples, problems
from rlax_plugin.api import Section, TextRow, TextSource, Tokenizer

_QUESTIONS = {
    "largest": "Which of these numbers is the largest?",
    "sum": "What is the sum of these numbers?",
}


class NumberTasksConfig(Section):
    """The largest of four numbers, or the sum of three digits, for pretrained models."""

    task: Task = Field(
        "largest",
        description="largest: of four different numbers from 1 to 99; sum: of three digits",
    )
    form: Literal["examples", "chat"] = Field(
        "examples",
        description="examples: a text with solved problems that breaks off where the answer "
        "belongs; chat: a question, put into the model's chat template",
    )
    shots: Annotated[int, Field(ge=0, le=16)] = Field(
        1, description="number of solved problems before the question"
    )
    system: str = Field(
        "Answer with one number and nothing else.",
        description="system message of a chat; empty: the default of the template",
    )
    train_problems: Annotated[PositiveInt, Field(le=100_000)] = Field(
        4096, description="maximum number of problems in the training split"
    )
    held_out_problems: Annotated[PositiveInt, Field(le=10_000)] = Field(
        512, description="maximum number of problems in the validation and in the test split"
    )


class NumberTasks(TextSource):
    """Prompts of one task in one form; ``docs/your_model.md`` shows both.

    After examples an answer ends with its line; in a chat it ends as the template defines.
    """

    def __init__(self, config: NumberTasksConfig, tokenizer: Tokenizer):
        chat = config.form == "chat"
        super().__init__(
            tokenizer, chat=chat, system=config.system, stop_strings=() if chat else ("\n",)
        )
        self._config, self._row = config, self._chat_row if chat else self._text_row

    def rows(self, split: str) -> Iterator[TextRow]:
        config = self._config
        count = config.train_problems if split == "train" else config.held_out_problems
        for problem in problems(config.task, split, count):
            yield self._row(problem, examples(config.task, problem, config.shots))

    def _text_row(self, problem: Problem, shown: list[Problem]) -> TextRow:
        ask, between = _TEXTS[self._config.task]
        solved = "".join(f"{ask(one)} {one.answer}{between}" for one in shown)
        answer = str(problem.answer)
        return TextRow(f"{solved}{ask(problem)}", answer, answer=f" {answer}")

    def _chat_row(self, problem: Problem, shown: list[Problem]) -> TextRow:
        asked = f"{_QUESTIONS[self._config.task]} {_numbers(problem)}"
        if not shown:
            return TextRow(asked, str(problem.answer))
        messages = [
            {"role": role, "content": content}
            for one in shown
            for role, content in (
                ("user", f"{_QUESTIONS[self._config.task]} {_numbers(one)}"),
                ("assistant", str(one.answer)),
            )
        ]
        return TextRow([*messages, {"role": "user", "content": asked}], str(problem.answer))


def _numbers(problem: Problem) -> str:
    return f"Numbers: {', '.join(map(str, problem.numbers))}"


# How a text asks, and what stands between its problems. SmolLM2-135M continues a list of sums such
# as "3 + 5 + 2 =" with the right number four times as often as "Numbers: 3, 5, 2", "Sum:".
_TEXTS = {
    "largest": (lambda problem: f"{_numbers(problem)}\nLargest:", "\n\n"),
    "sum": (lambda problem: f"{' + '.join(map(str, problem.numbers))} =", "\n"),
}
