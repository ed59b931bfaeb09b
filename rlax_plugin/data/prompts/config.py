"""The options that every prompt source over a dataset has."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.base import PositiveInt, Section

KEY = "rlax.prompt_source"
"""Config key in errors about an option; replaced for an evaluation set's own source."""

TRAIN = "train"
MANIFEST = "prepared.json"
"""Name of the file that describes the tables in its directory."""

_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FIELD = re.compile(r"[^.\[\]]+(?:\[[0-9]{1,6}\])?")
_MOST_HELD_OUT = 0.5


class DatasetConfig(Section):
    """Options of every dataset.

    A row of a dataset has columns. One of them is the question, one may be the reference that
    rewards compare with, and every further one becomes metadata of the prompt.
    """

    splits: Mapping[str, str | tuple[str, ...]] = Field(
        default={},
        description="split of the run, such as train or test -> its data: files, or the name of a "
        "split of the dataset; empty: all data is for training",
    )
    held_out: Mapping[str, Annotated[float, Field(gt=0, le=_MOST_HELD_OUT)]] = Field(
        default={},
        description="split -> share of the training questions that it gets instead, such as "
        "{validation: 0.02, test: 0.02}; a hash of the question decides, so the same question is "
        "always in the same split",
    )
    question: str = Field(
        default="",
        description="column of the question, which is a text or a list of messages with role and "
        "content; or a template of columns with text, such as 'Q: {question}\\nA:', in which "
        "{tests[0]} is the first item of a list. Empty: the one column named question, prompt, "
        "problem, instruction or messages",
    )
    reference: str = Field(
        default="",
        description="column of the reference, which is a text or a number; a.b is column b within "
        "a. Empty: the column named answer, reference, solution, ground_truth or target, if there "
        "is one",
    )
    metadata: tuple[str, ...] | None = Field(
        default=None,
        description="columns that become metadata of the prompt, for rewards, filters and the "
        "report; null: all columns but those of question and reference",
    )
    domain: str = Field(
        default="", description="column that names the domain of a prompt; empty: there are none"
    )
    weights: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default={},
        description="domain -> its share of the training prompts, relative to the others; empty: "
        "each domain keeps its share of the data",
    )
    chat: bool | None = Field(
        default=None,
        description="true: a question is the user's message in the model's chat template; "
        "false: the policy continues the text of the question. null: true if the tokenizer has "
        "a chat template",
    )
    tokenizer: str = Field(
        default="",
        description="tokenizer of the prompts: bytes, in which each byte is a token and which "
        "needs no files, for a model that starts from random weights; or a directory. Empty: that "
        "of the model, MaxText's key tokenizer_path",
    )
    system: str = Field(
        default="", description="system message before the question in a chat; empty: none"
    )
    template_arguments: Mapping[str, Any] = Field(
        default={},
        description="variables of the chat template besides the messages, such as "
        "{enable_thinking: false}",
    )
    stop_strings: tuple[str, ...] = Field(
        default=(), description="texts that end a completion, in addition to the model's end tokens"
    )
    max_tokens: PositiveInt | None = Field(
        default=None,
        description="longer prompts are left out and counted; null: "
        "rlax.rollouts.max_prompt_tokens",
    )
    max_row_bytes: PositiveInt = Field(
        default=8_000_000, description="a longer row counts as broken; this bounds the memory used"
    )
    duplicates: Literal["skip", "keep"] = Field(
        default="skip",
        description="treatment of a row with the question and reference of an earlier one: "
        "skip: it is left out and counted",
    )
    broken: Literal["error", "skip"] = Field(
        default="error",
        description="treatment of a row that cannot be used, such as a line that is not JSON: "
        "error: the run names it and does not start; skip: it is left out and counted",
    )

    @property
    def read_splits(self) -> tuple[str, ...]:
        """The splits that are read; the training split is the last."""
        return (*(name for name in self.splits if name != TRAIN), TRAIN)

    @property
    def all_splits(self) -> tuple[str, ...]:
        """The splits that have prompts."""
        return (TRAIN, *self.held_out, *(name for name in self.splits if name != TRAIN))

    @property
    def template(self) -> tuple[str, ...] | None:
        """The columns of a question that is a template; None if it is a column."""
        if "{" not in self.question and "}" not in self.question:
            return None
        return tuple(name for _, name, _, _ in string.Formatter().parse(self.question) if name)

    def check_together(self) -> None:
        self._splits_agree()
        self._template_is_plain()
        self._weights_have_domains()

    def _splits_agree(self) -> None:
        for option in ("splits", "held_out"):
            for name in getattr(self, option):
                if not _SPLIT.fullmatch(name):
                    raise ConfigError(option, name, "must be a name of letters, digits, _ . and -")
        if self.splits and TRAIN not in self.splits:
            raise ConfigError("splits", list(self.splits), "must have a split train")
        if both := sorted(set(self.held_out) & {TRAIN, *self.splits}):
            reason = f"must not name {both[0]}: it is read from data of its own"
            raise ConfigError("held_out", dict(self.held_out), reason)
        if (share := sum(self.held_out.values())) > _MOST_HELD_OUT:
            reason = f"must sum to at most {_MOST_HELD_OUT}, and sums to {share:g}"
            raise ConfigError("held_out", dict(self.held_out), reason)

    def _template_is_plain(self) -> None:
        try:
            parts = list(string.Formatter().parse(self.question))
        except ValueError as error:
            reason = f"is no template: {error}; write {{{{ and }}}} for braces"
            raise ConfigError("question", self.question, reason) from None
        for _, name, form, conversion in parts:
            if name is not None and (form or conversion or not _FIELD.fullmatch(name)):
                reason = "must have plain columns in its braces, such as {question}, or an item of "
                reason += "a column with a list, such as {tests[0]}"
                raise ConfigError("question", self.question, reason)

    def _weights_have_domains(self) -> None:
        if self.weights and not self.domain:
            raise ConfigError("weights", dict(self.weights), "needs domain, the column of domains")
        if self.weights and not any(self.weights.values()):
            raise ConfigError("weights", dict(self.weights), "must not all be 0")
        if self.system and self.chat is False:
            raise ConfigError("system", self.system, "needs a chat")
