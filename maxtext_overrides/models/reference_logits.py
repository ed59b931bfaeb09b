"""Reads ``reference.json``: logits of a model that were computed elsewhere, to compare with.

The file stands beside a model's config.json and holds rows of tokens, each with some of the logits
that transformers computes for them:

    {
      "made_with": "transformers 5.23.0, torch 2.13.0",
      "rows": [
        {
          "tokens": [5, 17, 3, 88],
          "at": [0, 3],
          "columns": [3, 59],
          "logits": [[0.25, -1.5], [2.0, 0.125]],
          "best": [88, 14],
          "answer": 2
        }
      ]
    }

``at`` are positions in the row, ``logits`` those of the tokens ``columns`` at each of them, and
``best`` the token with the largest logit. The last ``answer`` tokens of a row are the model's
greedy answer to those before them. A row may have ``positions`` of its tokens; else they are 0, 1,
2, ... All keys of a row but ``tokens`` may be absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from maxtext_overrides.models.huggingface_config import read
from rlax_plugin.errors import ConfigError

REFERENCE = "reference.json"
_MOST_ROWS, _MOST_TOKENS, _MOST_POSITION = 16, 1 << 14, 1 << 24

_Index = Annotated[int, Field(ge=0, lt=_MOST_POSITION)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Row(_Closed):
    """A row of tokens and the logits that a model computes for it; see the module."""

    tokens: list[_Index] = Field(min_length=1, max_length=_MOST_TOKENS)
    positions: list[_Index] | None = None
    at: list[_Index] = []
    columns: list[_Index] = []
    logits: list[list[FiniteFloat]] = []
    best: list[_Index] = []
    answer: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        length = len(self.tokens)
        if self.positions is not None and len(self.positions) != length:
            raise ValueError("positions must be as many as tokens")
        if any(place >= length for place in self.at):
            raise ValueError("at must be places in the row")
        if len(self.logits) != len(self.at) or len(self.best) not in (0, len(self.at)):
            raise ValueError("logits and best must have one entry for each place in at")
        if any(len(row) != len(self.columns) for row in self.logits):
            raise ValueError("logits must have one number for each token in columns")
        if self.answer >= length:
            raise ValueError("answer must leave a prompt")
        return self


class Reference(_Closed):
    """The content of ``reference.json``."""

    made_with: str = Field(max_length=200)
    rows: list[Row] = Field(min_length=1, max_length=_MOST_ROWS)

    @property
    def longest(self) -> int:
        """The number of tokens of the longest row."""
        return max(len(row.tokens) for row in self.rows)


def read_reference(directory: Path, vocab_size: int) -> Reference | None:
    """Returns the reference figures that come with a model; None if there are none.

    Args:
      directory: directory of the model's config.json.
      vocab_size: vocabulary size of the model.

    Raises:
      ConfigError: the file is damaged, or names tokens that the model does not have.
    """
    path = directory / REFERENCE
    if not path.is_file():
        return None
    try:
        found = Reference.model_validate(read(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where} in {path}", None, reason) from None
    for row in found.rows:
        if max(*row.tokens, *row.columns, *row.best, 0) >= vocab_size:
            reason = f"names a token that the model, which has {vocab_size}, does not have"
            raise ConfigError(f"rows in {path}", None, reason)
    if not any(row.logits or row.best or row.answer for row in found.rows):
        raise ConfigError(f"rows in {path}", None, "hold nothing to compare with")
    return found
