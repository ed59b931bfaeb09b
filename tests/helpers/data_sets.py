"""Data sets on disk, and their tables: prepared in this process, which takes no second process."""

import gzip
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rlax_datasets import JsonlConfig, JsonlSource
from small_tokenizers import CHATML, byte_level

from rlax_plugin.api import DatasetConfig, DatasetSource, PromptTable, Tokenizer
from rlax_plugin.data.prompts import source as dataset_source
from rlax_plugin.data.prompts.rows_to_table import prepare
from rlax_plugin.data.prompts.source import Progress, open_tables

_kept: list[tempfile.TemporaryDirectory[str]] = []  # until this process ends


def _directory(purpose: str) -> Path:
    beside = os.environ.get("PYTEST_DEBUG_TEMPROOT")  # what is in TMPDIR has to go with its test
    _kept.append(tempfile.TemporaryDirectory(prefix=f"rlax-test-{purpose}-", dir=beside))
    return Path(_kept[-1].name)


@cache
def tokenizer(*, chat: bool = False) -> Tokenizer:
    """Byte by byte, with or without a chat template."""
    directory = _directory("tokenizer")
    template = CHATML if chat else None
    return Tokenizer.load(byte_level(directory, template=template), "tokenizer_path")


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Rows as JSON lines; text and bytes are lines already."""
    lines = [
        row
        if isinstance(row, bytes)
        else (row if isinstance(row, str) else json.dumps(row)).encode()
        for row in rows
    ]
    data = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


class ListedConfig(DatasetConfig):
    """Rows that stand in the config itself, and a program that ends the reading."""

    listed: Mapping[str, tuple[dict[str, Any], ...]] = {}
    end: str = ""


class Listed(DatasetSource):
    """The rows of its config; then its program runs."""

    config: ListedConfig

    def rows(self, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for number, row in enumerate(self.config.listed.get(split, ()), 1):
            yield f"row {number}", row
        if self.config.end:
            exec(self.config.end, {})


def listed(
    *rows: Mapping[str, Any],
    of: Mapping[str, Any] | None = None,
    chat: bool = False,
    limit: int = 1000,
    deadline_s: float = 120.0,
    **options: Any,
) -> Listed:
    """A source of some training rows.

    Args:
      of: split -> rows.
      chat: whether the tokenizer has a chat template.
      limit: tokens of a prompt.
    """
    config = ListedConfig.model_validate(
        {"listed": {"train": rows} if of is None else of} | options
    )
    return Listed(config, tokenizer(chat=chat), max_tokens=limit, deadline_s=deadline_s)


def jsonl(
    path: Path | str,
    *,
    chat: bool = False,
    tokens: Tokenizer | None = None,
    progress: Progress = lambda what, rows: None,
    **options: Any,
) -> JsonlSource:
    """A source of a file, or of ``splits``."""
    where = {} if "splits" in options else {"path": str(path)}
    config = JsonlConfig.model_validate({**where, **options})
    tokens = tokens or tokenizer(chat=chat)
    return JsonlSource(config, tokens, max_tokens=1000, progress=progress)


def tables(source: DatasetSource, **options: float) -> dict[str, PromptTable]:
    """What the other process would prepare.

    Args:
      options: of ``prepare``.
    """
    directory = _directory("prompts")
    prepare(source, directory, source.identity(), lambda split, rows: None, **options)
    found = open_tables(directory, source)
    assert found is not None
    return found


def prepare_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has what a command reads prepared in this process, too."""
    monkeypatch.setattr(dataset_source, "tables_of", lambda source, **_: tables(source))
