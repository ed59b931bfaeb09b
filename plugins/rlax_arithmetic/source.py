"""The prompt source ``arithmetic``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from rlax_arithmetic import tokenizer
from rlax_arithmetic.problems import SPLITS, Operation, ProblemSet
from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    PathText,
    PositiveInt,
    Prompt,
    PromptSource,
    Section,
    alternatives,
)

TASK = "arithmetic"


class ArithmeticConfig(Section):
    """Sums or products of two numbers, such as "12+34="; the reference is the right answer."""

    digits: Annotated[int, Field(ge=1, le=3)] = Field(
        2, description="number of digits of each operand"
    )
    operation: Operation = Field("add", description="operation on the two operands")
    test_problems: PositiveInt = Field(
        1000,
        description="number of problems in the test split. A problem and its mirror image, such "
        "as 1+2 and 2+1, are always in the same split, so the split may have one "
        "problem more",
    )
    validation_problems: PositiveInt = Field(
        1000,
        description="number of problems in the validation split; it may have one more, like the "
        "test split",
    )
    train_problems: PositiveInt = Field(
        20_000, description="maximum number of problems in the training split"
    )
    calculator: bool = Field(
        False,
        description="true: the right answers of a warm start have the sum or product calculated by "
        "the environment calculator, with its default marks",
    )
    worked: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="share of the problems whose right answer in demonstrations (a warm start, "
        "rlax.objective.guidance) has its digits from the units up before it, such as 64=46. "
        "Those of a smaller share are among those of a larger one. The warm start's pass@1 is the "
        "probability of the one answer that is shown, though another form is right as well",
    )
    data_dir: PathText = Field(
        "", description="directory of the dataset; empty: a directory in the user's cache directory"
    )

    @property
    def problem_set(self) -> ProblemSet:
        return ProblemSet(
            digits=self.digits,
            operation=self.operation,
            test=self.test_problems,
            validation=self.validation_problems,
            train=self.train_problems,
        )

    def check_together(self) -> None:
        if self.worked and self.calculator:
            reason = "must be 0 with calculator, which has right answers of its own"
            raise ConfigError("rlax.prompt_source.worked", self.worked, reason)
        held_out = self.test_problems + self.validation_problems
        # Each held-out split may grow by one, see `problems.operands`.
        if held_out + 2 >= self.problem_set.total:
            raise ConfigError(
                "rlax.prompt_source.test_problems",
                self.test_problems,
                f"must be smaller: with validation_problems = {self.validation_problems}, none of "
                f"the {self.problem_set.total} problems of {self.digits} digit(s) is left to train "
                "on",
            )


def check_start(config: ArithmeticConfig, context: BuildContext) -> None:
    """Checks that demonstrations show worked answers, as longer ones than samples are left out.

    Raises:
      ConfigError: samples are shorter than the longest worked answer.
    """
    most = context.section.rollouts.max_new_tokens
    digits = config.digits + 1 if config.operation == "add" else 2 * config.digits
    longest = 2 * digits + 2  # its digits twice, the = between them and the end token
    if config.worked and most < longest:
        reason = (
            f"must be at least {longest}, the tokens of the longest right answer of the prompt "
            f"source arithmetic with worked = {config.worked:g}: longer ones are not demonstrated"
        )
        raise ConfigError("rlax.rollouts.max_new_tokens", most, reason)


class ArithmeticSource(PromptSource):
    """Prompts ``<bos>12+34=``; the reference is the answer in decimal.

    The dataset is prepared and read at the first call of `prompts`; decoding needs neither.
    """

    def __init__(self, config: ArithmeticConfig):
        self._problems = config.problem_set
        self._data_dir = Path(config.data_dir).expanduser() if config.data_dir else _cache_dir()
        self._calculator, self._worked = config.calculator, config.worked
        self._prompts: dict[str, tuple[Prompt, ...]] = {}

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Returns all prompts of a split, in the dataset's order.

        Raises:
          ConfigError: there is no such split.
          OSError: the dataset cannot be written or read.
        """
        if split not in SPLITS:
            reason = f"no such split; {alternatives(split, SPLITS)}"
            raise ConfigError("split of rlax.prompt_source", split, reason)
        if split not in self._prompts:
            from rlax_arithmetic import dataset

            rows = dataset.read(self._problems, self._data_dir, split)
            self._prompts[split] = tuple(_prompt(question, answer) for question, answer in rows)
        return self._prompts[split]

    def decode(self, tokens: np.ndarray) -> str:
        return tokenizer.decode(tokens)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a prompt such as ``12+34=``.

        Raises:
          ValueError: a character is not in the vocabulary.
        """
        return [tokenizer.BOS_ID, *tokenizer.encode(text)]

    def encode_given(self, text: str) -> list[int]:
        """Returns the tokens of a text that an environment adds after a completion.

        Raises:
          ValueError: a character is not in the vocabulary.
        """
        return tokenizer.encode(text)

    def answer_tokens(self, prompt: Prompt) -> np.ndarray:
        """Returns the right completion, the end token included, int32 [tokens]."""
        answer = prompt.reference
        # Of the id, a hash of the question: the same problems in every run.
        if int(prompt.id[:8], 16) < self._worked * 2**32:
            answer = f"{answer[::-1]}={answer}"
        return _ended(answer)

    def answer_turns(self, prompt: Prompt) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns, per turn of a right episode, the tokens given and the answer, both int32."""
        if not self._calculator:
            return [(np.zeros(0, np.int32), self.answer_tokens(prompt))]
        call = _ended(f"-{prompt.text}")
        result = np.array(tokenizer.encode(f"={prompt.reference}="), np.int32)
        return [(np.zeros(0, np.int32), call), (result, self.answer_tokens(prompt))]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (tokenizer.EOS_ID,)

    @property
    def pad_id(self) -> int:
        """The id of the token that pads rows to the batch's length."""
        return tokenizer.PAD_ID


def _ended(text: str) -> np.ndarray:
    """Returns the tokens of a completion, followed by the end token."""
    return np.array([*tokenizer.encode(text), tokenizer.EOS_ID], dtype=np.int32)


def _prompt(question: str, answer: str) -> Prompt:
    content = hashlib.blake2b(f"{TASK}\n{question}".encode(), digest_size=16)
    tokens = np.array([tokenizer.BOS_ID, *tokenizer.encode(question)], dtype=np.int32)
    return Prompt(id=content.hexdigest(), tokens=tokens, text=question, reference=answer)


def _cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "rlax_plugin" / "tfds"
